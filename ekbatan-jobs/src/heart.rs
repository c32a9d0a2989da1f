//! Keeps a node alive, and takes over from those that are not.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use ekbatan_core::domain::Stored;
use ekbatan_events::__private::failure;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::JobsError;
use crate::job_set::JobSet;
use crate::membership::{Membership, OtherNodes};
use crate::rows::{NodeRow, RunRow, RunState};
use crate::settings::Settings;
use crate::store::Store;

/// Keeps a node alive, and takes over from those that are not.
pub(crate) struct Heart {
    pub(crate) store: Store,
    pub(crate) jobs: JobSet,
    pub(crate) settings: Settings,
    pub(crate) identity: watch::Sender<Option<Uuid>>,
    pub(crate) leaving: watch::Receiver<bool>,
}

impl Heart {
    /// Renews the node and looks at the others until it leaves. `renewed`: the time before the last renewal,
    /// from which others count the lease at the earliest.
    pub(crate) async fn beat(self, mut membership: Membership, renewed: Instant) {
        let leaving = self.leaving.clone();
        // Side by side: a look at others that takes long keeps no renewal waiting, and none cuts it short.
        tokio::select! {
            () = self.live(&mut membership, renewed, leaving) => {}
            () = self.look_at_others() => {}
        }
        if let Err(error) = membership.leave().await {
            tracing::warn!(%error, "a node of jobs left its row behind; others delete it");
        }
    }

    /// Renews the node until it leaves.
    async fn live(
        &self,
        membership: &mut Membership,
        mut renewed: Instant,
        mut leaving: watch::Receiver<bool>,
    ) {
        let (lease, every) = (self.settings.lease, self.settings.lease / 5);
        let mut is_renewed = true;
        loop {
            // In time, also if the last renewal took long.
            let (due, over, now) = (renewed + every * 4, renewed + lease, Instant::now());
            let next = if is_renewed {
                (now + every).min(due)
            } else if now < over {
                (now + every).min(over)
            } else {
                now + every
            };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                _ = leaving.changed() => return,
            }
            is_renewed = false;
            let begun = Instant::now();
            if begun >= over {
                // Others may take this node for dead.
                self.set_identity(None);
            }
            // Once nothing of it runs any more, the answer may come late.
            let latest = if begun < over { over } else { begun + lease };
            match tokio::time::timeout_at(latest, membership.renew()).await {
                Ok(Ok(true)) => {
                    (renewed, is_renewed) = (begun, true);
                    self.set_identity(Some(membership.id()));
                }
                Ok(Ok(false)) => {
                    tracing::warn!(node = %membership.id(), "this node of jobs was silent for too long; others have taken over");
                    self.set_identity(None);
                    let joining = Instant::now();
                    match self.join().await {
                        Ok(joined) => {
                            (*membership, renewed, is_renewed) = (joined, joining, true);
                            self.set_identity(Some(membership.id()));
                        }
                        Err(error) => {
                            tracing::warn!(%error, "the node of jobs could not join again; trying again");
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
        let mut others = OtherNodes::new(&self.store);
        // What could not be taken from others at the last look, such as because a row was locked.
        let mut stuck = HashSet::new();
        loop {
            let own = *self.identity.borrow();
            if let Some(own) = own
                && let Err(error) = self.look_around(own, &mut others, &mut stuck).await
            {
                tracing::debug!(%error, "the other nodes could not be looked at; trying again");
            }
            // Their leases may be shorter.
            tokio::time::sleep(others.shortest_lease().min(self.settings.lease) / 5).await;
        }
    }

    pub(crate) async fn join(&self) -> Result<Membership, JobsError> {
        let Settings { name, lease, .. } = &self.settings;
        Membership::join(&self.store, name, *lease).await
    }

    /// Nothing new begins once others may take this node for dead, and what runs is cancelled.
    fn silent(&self, renewed: Instant, error: &dyn std::error::Error) {
        tracing::warn!(%error, "the node of jobs could not be renewed");
        if renewed.elapsed() >= self.settings.lease {
            self.set_identity(None);
        }
    }

    fn set_identity(&self, identity: Option<Uuid>) {
        self.identity.send_if_modified(|known| std::mem::replace(known, identity) != identity);
    }

    /// Takes over the runs of nodes that are gone, and ends those that are long overdue. `stuck`: the nodes
    /// and runs that could not be taken at the last look, such as because their rows were locked. They come
    /// last, so that nothing else waits for them.
    async fn look_around(
        &self,
        own: Uuid,
        others: &mut OtherNodes,
        stuck: &mut HashSet<Uuid>,
    ) -> Result<(), JobsError> {
        // Before the nodes: a node is there before its runs are.
        let names = self.jobs.names();
        let active = match self.store.active(&names).await {
            // That of one job. The runs of the others are taken over.
            Err(error) if error.is_unreadable() => self.store.look(&names).await?.active,
            active => active?,
        };
        let (mut living, silent) = others.look(own).await?;
        let mut running: Vec<_> =
            active.into_iter().filter(|run| run.state == RunState::Running).collect();
        let (stuck_nodes, silent): (Vec<_>, Vec<_>) =
            silent.into_iter().partition(|node| stuck.contains(&node.id.uuid()));
        running.sort_by_key(|run| stuck.contains(&run.id.uuid()));
        stuck.clear();
        for node in silent {
            if self.delete(&node, others, stuck).await {
                living.remove(&node.id.uuid());
            }
        }
        if !running.is_empty() {
            let now = self.store.now().await?;
            for run in running {
                self.settle(&run, &living, now, stuck).await;
            }
        }
        for node in stuck_nodes {
            self.delete(&node, others, stuck).await;
        }
        Ok(())
    }

    /// Whether a silent node was deleted.
    async fn delete(
        &self,
        node: &Stored<NodeRow>,
        others: &OtherNodes,
        stuck: &mut HashSet<Uuid>,
    ) -> bool {
        match failure::within(self.settings.lease, others.delete(node)).await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(node = %node.id, error, "a silent node was not deleted; trying again");
                stuck.insert(node.id.uuid());
                false
            }
        }
    }

    /// Takes a run over if its node is gone, or ends it if it is long overdue.
    async fn settle(
        &self,
        run: &Stored<RunRow>,
        living: &HashMap<Uuid, Duration>,
        now: DateTime<Utc>,
        stuck: &mut HashSet<Uuid>,
    ) {
        let settling = async {
            let Some(lease) = living.get(&run.node) else {
                return self.store.take_over(run).await.map(drop);
            };
            let grace = TimeDelta::from_std(*lease).unwrap_or_default();
            if run.deadline.is_some_and(|deadline| now - deadline > grace) {
                self.end_overdue(run).await?;
            }
            Ok(())
        };
        if let Err(error) = failure::within(self.settings.lease, settling).await {
            tracing::warn!(job = %run.job, run = %run.id, error, "a run could not be taken from its node; trying again");
            stuck.insert(run.id.uuid());
        }
    }

    async fn end_overdue(&self, run: &Stored<RunRow>) -> Result<(), JobsError> {
        let why = "did not end by its deadline, and its node could not cancel it";
        if self.store.end(run, RunState::Failed, Some(why.to_owned())).await? {
            tracing::error!(job = %run.job, run = %run.id, why, "a run was ended for its node");
        }
        Ok(())
    }
}
