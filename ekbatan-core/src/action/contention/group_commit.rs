//! The commit of a group: a task of its own, which nobody can drop, and the answers to the
//! members.
//!
//! What always holds: each member is told once, and only what is known: that the group is
//! committed, that it is to run again, or that nobody knows.

use std::sync::Arc;

use tokio::sync::{oneshot, watch};
use tracing::{Instrument, Span, field};

use super::group::{Group, Member};
use super::line::{Run, Waiter};
use super::strategy::Encounter;
use super::turn::{Told, Turn};
use crate::action::effect::run_all;
use crate::action::executor::Inner;
use crate::action::persist::tokens;
use crate::db::{ActionId, CommitError, Committed, Database, DbErrorKind};
use crate::domain::LockKey;

/// A group that is to be committed.
pub(super) struct GroupCommit {
    inner: Arc<Inner>,
    key: LockKey,
    group: Group,
    members: Vec<Member>,
    /// The turn, unless somebody has it; it goes on once the commit is answered.
    turn: Option<Turn>,
    /// Whoever has the turn meanwhile, and waits to hear how this ends.
    done: Option<watch::Sender<Option<bool>>>,
}

impl GroupCommit {
    pub(super) fn new(
        inner: Arc<Inner>,
        key: LockKey,
        mut group: Group,
        turn: Option<Turn>,
        done: Option<watch::Sender<Option<bool>>>,
    ) -> Self {
        let members = std::mem::take(&mut group.members);
        Self { inner, key, group, members, turn, done }
    }

    pub(super) fn start(self) {
        let span = tracing::info_span!(
            parent: None,
            "ekbatan.contention.commit",
            ekbatan.contention.key = %self.key,
            ekbatan.contention.group_size = self.members.len(),
            ekbatan.batch.size = field::Empty,
            ekbatan.commit.round_trips = field::Empty,
            ekbatan.commit.folded = field::Empty,
            ekbatan.commit.lane_wait_us = field::Empty,
        );
        let inner = self.inner.clone();
        inner.strategies.lines.spawn(self.run().instrument(span));
    }

    async fn run(mut self) {
        match self.group.take_batch() {
            // Whoever changes nothing joins only those who do.
            None => drop(self),
            Some((database, batch)) => {
                Span::current().record("ekbatan.batch.size", batch.changes.len());
                let traced = batch.action;
                let over = self.group.fencing.as_ref().and_then(|fencing| fencing.over());
                let committed = match over {
                    Some(key) => Err(CommitError::FenceLost(key.to_owned())),
                    None => database.commit(batch).await,
                };
                match committed {
                    Ok(committed) => self.committed(&database, committed).await,
                    Err(error) => self.failed(&database, traced, error).await,
                }
            }
        }
    }

    async fn committed(mut self, database: &Arc<Database>, committed: Committed) {
        Span::current()
            .record("ekbatan.commit.round_trips", committed.round_trips)
            .record("ekbatan.commit.folded", committed.folded)
            .record("ekbatan.commit.lane_wait_us", committed.lane_wait.as_micros() as u64);
        self.go_on(true);
        let wanted = self.members.iter().any(|member| member.token);
        let token = match wanted {
            true => tokens(std::slice::from_ref(database)).await.unwrap_or_else(|error| {
                tracing::warn!(%error, "how far the commit's shard has come could not be asked");
                None
            }),
            false => None,
        };
        let size = self.members.len();
        let mut effects = Vec::new();
        for member in std::mem::take(&mut self.members) {
            let Member { action, tell, open, .. } = member;
            let token = token.clone().filter(|_| member.token);
            let committed = Committed { action, token, ..committed.clone() };
            drop(open); // known, also to effects that ask for the outcome
            let mut effects_told = None;
            if !member.effects.is_empty() {
                let (ran, told) = oneshot::channel();
                effects.push((member.effects, committed.clone(), ran));
                effects_told = Some(told);
            }
            let told = Told::Committed { committed, members: size, effects: effects_told };
            let _ = tell.send(told);
        }
        if let Some(lease) = self.group.lease.take() {
            lease.release().await;
        }
        for (effects, committed, ran) in effects {
            self.inner.count_effect_failures(run_all(effects, committed).await);
            let _ = ran.send(());
        }
    }

    async fn failed(mut self, database: &Database, traced: ActionId, error: CommitError) {
        let members = std::mem::take(&mut self.members);
        let mut open = Vec::new();
        match error {
            CommitError::Unknown(_, why) => {
                for member in members {
                    // The lanes keep it open themselves, and this must not wait for itself.
                    if member.action != traced {
                        open.push(member.open);
                    }
                    let _ = member.tell.send(Told::Unknown(why.clone()));
                }
            }
            // To ask for each one alone would only take as long again, for each.
            CommitError::Refused(error) if is_of_all(error.kind()) => {
                for member in members {
                    let _ = member.tell.send(Told::Refused(error.kind(), error.to_string()));
                }
            }
            error => self.run_again(members, &error),
        }
        self.go_on(false);
        if let Some(lease) = self.group.lease.take() {
            lease.release().await;
        }
        if !open.is_empty() {
            // The lanes go on asking what became of the batch, under the name of one member.
            database.settled(traced).await;
        }
    }

    /// Lets the members run again, those who waited longest first: together after a conflict,
    /// and each by itself if that was not the first, or if it is one of them that is at fault.
    fn run_again(&mut self, members: Vec<Member>, error: &CommitError) {
        let stale = matches!(error, CommitError::Stale(_));
        if stale {
            self.inner.strategies.tell(&self.key, Encounter::ForeignConflict);
        }
        tracing::debug!(name: "rerun", members = members.len(), %error, "a group was refused and runs again");
        let waiters = members.into_iter().filter(|member| !member.tell.is_closed());
        let waiters = waiters.map(|member| Waiter {
            ticket: member.ticket,
            run: if stale && !member.ran_before { Run::Again } else { Run::Alone },
            options: member.options,
            tell: member.tell,
        });
        let waiters = waiters.collect();
        let put_back = self.inner.strategies.lines.put_back(&self.inner, &self.key, waiters);
        // Whoever had the turn meanwhile may have left, and the line with it.
        self.turn = self.turn.take().or(put_back);
    }

    /// Lets the line go on.
    fn go_on(&mut self, committed: bool) {
        if let Some(done) = self.done.take() {
            let _ = done.send(Some(committed));
        }
        drop(self.turn.take());
    }
}

/// Whether every member would be refused for the same reason.
fn is_of_all(kind: DbErrorKind) -> bool {
    matches!(kind, DbErrorKind::Unavailable | DbErrorKind::PoolTimeout | DbErrorKind::LockTimeout)
}
