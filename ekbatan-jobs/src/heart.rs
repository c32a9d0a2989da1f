//! Keeps a node alive, and takes over from those that are not.

use ekbatan_core::domain::Stored;
use ekbatan_events::__private::failure;
use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::JobsError;
use crate::job_set::JobSet;
use crate::membership::Membership;
use crate::rows::{RunRow, RunState};
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
    pub(crate) async fn beat(mut self, mut membership: Membership, mut renewed: Instant) {
        let (lease, every) = (self.settings.lease, self.settings.lease / 5);
        let mut is_renewed = true;
        loop {
            // In time, also if the last renewal and the look at the others take long.
            let (due, over) = (renewed + every * 4, renewed + lease);
            // After a renewal that failed, only the next one matters.
            if is_renewed {
                let latest = (renewed + lease / 2).max(Instant::now() + every).min(due);
                self.look_around_until(latest, &mut membership).await;
            }
            let now = Instant::now();
            let next = if is_renewed {
                (now + every).min(due)
            } else if now < over {
                (now + every).min(over)
            } else {
                now + every
            };
            tokio::select! {
                () = tokio::time::sleep_until(next) => {}
                _ = self.leaving.changed() => {
                    if let Err(error) = membership.leave().await {
                        tracing::warn!(%error, "a node of jobs left its row behind; others delete it");
                    }
                    return;
                }
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
                            (membership, renewed, is_renewed) = (joined, joining, true);
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

    async fn look_around_until(&self, latest: Instant, membership: &mut Membership) {
        match tokio::time::timeout_at(latest, self.look_around(membership)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, "the other nodes could not be looked at; trying again");
            }
            Err(late) => {
                tracing::debug!(%late, "the other nodes could not be looked at in time; trying again");
            }
        }
    }

    /// Takes over the runs of nodes that are gone, and ends those that are long overdue.
    async fn look_around(&self, membership: &mut Membership) -> Result<(), JobsError> {
        // Before the nodes: a node is there before its runs are.
        let names = self.jobs.names();
        let active = match self.store.active(&names).await {
            // That of one job. The runs of the others are taken over.
            Err(error) if error.is_unreadable() => self.store.look(&names).await?.active,
            active => active?,
        };
        let living = membership.clear_away().await?;
        let running: Vec<_> =
            active.into_iter().filter(|run| run.state == RunState::Running).collect();
        if running.is_empty() {
            return Ok(());
        }
        let now = self.store.now().await?;
        let lease = self.settings.lease;
        let grace = chrono::TimeDelta::from_std(lease).unwrap_or_default();
        for run in running {
            let is_overdue = run.deadline.is_some_and(|deadline| now - deadline > grace);
            let settling = async {
                if !living.contains(&run.node) {
                    self.store.take_over(&run).await.map(drop)
                } else if is_overdue {
                    self.end_overdue(&run).await
                } else {
                    Ok(())
                }
            };
            // One that fails, or whose row is locked, stops no other run.
            if let Err(error) = failure::within(lease / 10, settling).await {
                tracing::warn!(job = %run.job, run = %run.id, error, "a run could not be taken from its node; trying again");
            }
        }
        Ok(())
    }

    async fn end_overdue(&self, run: &Stored<RunRow>) -> Result<(), JobsError> {
        let why = "did not end by its deadline, and its node could not cancel it";
        if self.store.end(run, RunState::Failed, Some(why.to_owned())).await? {
            tracing::error!(job = %run.job, run = %run.id, why, "a run was ended for its node");
        }
        Ok(())
    }
}
