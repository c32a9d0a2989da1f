//! The heart of a node: renews its row, takes over from nodes that do not, and learns what other processes have
//! registered.

use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::__private::deliveries::DeliveryHub;
use ekbatan_core::shard::{Databases, Shard};
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::EventsError;
use crate::handlers::handler_set::HandlerSet;
use crate::nodes::alive::Life;
use crate::nodes::fences::{FenceTasks, Fences};
use crate::nodes::membership::{Membership, OtherNodes};
use crate::nodes::registration::Registrar;
use crate::settings::Settings;

/// For how long at most a node that is drained deletes its row.
const LONGEST_LEAVE: Duration = Duration::from_secs(5);

/// Keeps a node alive on one shard, and takes over from those that are not.
pub(crate) struct Heart {
    pub(crate) databases: Databases,
    pub(crate) shard: Shard,
    pub(crate) handlers: HandlerSet,
    pub(crate) registrar: Registrar,
    pub(crate) hub: Arc<DeliveryHub>,
    pub(crate) settings: Settings,
    pub(crate) identity: watch::Sender<Option<Uuid>>,
    /// Until when others do not take the node for dead.
    pub(crate) alive: watch::Sender<Life>,
    pub(crate) leaving: watch::Receiver<bool>,
    pub(crate) fences: FenceTasks,
}

impl Heart {
    /// `joined`: the time before the node was added.
    pub(crate) async fn beat(self, mut membership: Membership, joined: Instant) {
        let (mut leaving, lease) = (self.leaving.clone(), self.settings.lease);
        // Side by side: a look at others that takes long keeps no renewal waiting, and none cuts it short.
        tokio::select! {
            () = self.live(&mut membership, joined) => {}
            () = self.look_at_others() => {}
            _ = leaving.wait_for(|leaving| *leaving) => {}
        }
        // After its lease, others delete the row in any case.
        let leaving = tokio::time::timeout(LONGEST_LEAVE.min(lease), membership.leave());
        let why = match leaving.await {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(late) => late.to_string(),
        };
        tracing::warn!(error = why, "a node left its row behind; others delete it");
    }

    /// Renews the node for ever. `renewed`: the time before the last renewal.
    async fn live(&self, membership: &mut Membership, mut renewed: Instant) {
        let (lease, every) = (self.settings.lease, self.settings.lease / 5);
        let mut begun = renewed;
        loop {
            // In time, also if the last renewal took long.
            tokio::time::sleep_until((Instant::now() + every).min(begun + every * 4)).await;
            begun = Instant::now();
            // It may come late: nothing begins in the meantime.
            match tokio::time::timeout_at(begun + lease, membership.renew()).await {
                Ok(Ok(true)) => {
                    renewed = begun;
                    self.revive(renewed, membership);
                }
                Ok(Ok(false)) => {
                    tracing::warn!(node = %membership.id(), shard = %self.shard.identifier(), "this node was silent for too long; others have taken over");
                    self.set_identity(None);
                    let joining = Instant::now();
                    match self.join_again().await {
                        Ok(joined) => {
                            (*membership, renewed) = (joined, joining);
                            self.revive(renewed, membership);
                        }
                        Err(error) => {
                            tracing::warn!(%error, "the node could not join again; trying again")
                        }
                    }
                }
                Ok(Err(error)) => self.silent(renewed, &error),
                Err(late) => self.silent(renewed, &late),
            }
        }
    }

    /// Looks at the other nodes for ever, as long as this one is alive.
    async fn look_at_others(&self) {
        let lease = self.settings.lease;
        let mut others = OtherNodes::new(&self.databases, &self.shard, lease);
        loop {
            tokio::time::sleep(lease / 5).await;
            let Some(own) = *self.identity.borrow() else { continue };
            if let Err(error) = self.look_around(own, &mut others).await {
                tracing::debug!(%error, "the other nodes could not be looked at; trying again");
            }
        }
    }

    /// Lets the worker begin runs for as long as others do not take the node for dead.
    fn revive(&self, renewed: Instant, membership: &Membership) {
        let until = renewed + self.settings.lease;
        self.alive.send_replace(Life { node: membership.id(), until });
        self.set_identity(Some(membership.id()));
    }

    async fn join_again(&self) -> Result<Membership, EventsError> {
        let now = self.databases.clock().now();
        Membership::join(&self.databases, &self.shard, &self.settings.name, now).await
    }

    /// What the node holds is forgotten once others may take it for dead.
    fn silent(&self, renewed: Instant, error: &dyn std::error::Error) {
        tracing::warn!(shard = %self.shard.identifier(), %error, "the node could not be renewed");
        if renewed.elapsed() >= self.settings.lease {
            self.set_identity(None);
        }
    }

    fn set_identity(&self, identity: Option<Uuid>) {
        self.identity.send_if_modified(|known| std::mem::replace(known, identity) != identity);
    }

    async fn look_around(&self, own: Uuid, others: &mut OtherNodes) -> Result<(), EventsError> {
        let fences = Fences {
            handlers: self.handlers.clone(),
            subscriptions: self.registrar.present(&self.hub).await?,
            tasks: self.fences.clone(),
        };
        others.clear_away(own, &fences, self.databases.clock().now()).await.map(drop)
    }
}
