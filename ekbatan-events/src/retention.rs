//! Retention: deletes what nobody needs any more, by age.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::Delivery;
use ekbatan_core::__private::{CENTURY, OldRows, OldStepKey, StepOwner};
use ekbatan_core::config::RetentionConfig;
use ekbatan_core::domain::{Entity, Id, ShardIdentifier};
use ekbatan_core::shard::{Databases, Shard};
use tokio::sync::watch;
use uuid::Uuid;

use crate::dead_letter::DeadLetter;
use crate::error::EventsError;
use crate::nodes::registration::Registrar;
use crate::remote::call::RemoteCall;

/// For how long the framework's rows are kept. What is not set is kept for ever.
///
/// | | what goes | what stays, however old it is |
/// |---|---|---|
/// | [`events`](Self::events) | events that every present handler has handled, and rows without an event | an event with a delivery, be it due, parked or blocked; one with a dead letter that nobody has settled; one that a handler has still to get |
/// | [`dead_letters`](Self::dead_letters) | those that were settled | those that nobody has settled |
/// | [`keys`](Self::keys) | idempotency keys: a repeated call runs again | those of the steps of a handler whose event is still to be handled, and of a job whose run has not ended |
/// | [`inbox`](Self::inbox) | messages that were handled: a duplicate runs again | |
///
/// Remote calls that are settled go after their events. Fences of locks that no lease can need are
/// [deleted](Databases::prune_fences) with all of this.
///
/// ```
/// # use std::time::Duration;
/// # use ekbatan_core::shard::Databases;
/// # use ekbatan_events::{Retention, RetentionError};
/// # async fn run(databases: &Databases) -> Result<(), RetentionError> {
/// let days = |count: u64| Duration::from_secs(count * 24 * 60 * 60);
/// let retention = Retention::new()
///     .events(days(30))
///     .dead_letters(days(90))
///     .keys(days(7))
///     .inbox(days(14));
/// let deleted = retention.run(databases).await?;
/// println!("{} events", deleted.events);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "a retention deletes nothing until it is run or given to a node"]
pub struct Retention {
    pub(crate) events: Option<Duration>,
    pub(crate) dead_letters: Option<Duration>,
    pub(crate) keys: Option<Duration>,
    pub(crate) inbox: Option<Duration>,
    pub(crate) every: Option<Duration>,
    pub(crate) rows_at_once: Option<usize>,
}

/// How many rows a retention has deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deleted {
    /// Events, and rows of actions without events.
    pub events: u64,
    /// Settled dead letters.
    pub dead_letters: u64,
    /// Idempotency keys, and keys of enqueued calls.
    pub keys: u64,
    /// Messages that were handled.
    pub inbox: u64,
    /// Fences of locks.
    pub fences: u64,
    /// Remote calls that are settled, and whose events are gone.
    pub remote_calls: u64,
}

/// Error returned when a retention cannot run, or fails on some shards.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    /// Rows are needed for longer than that.
    #[error("the retention of `{rows}` is {asked:?}; rows are kept for at least {kept:?}")]
    #[non_exhaustive]
    TooYoung {
        /// `events`, `dead_letters`, `keys` or `inbox`.
        rows: &'static str,
        /// The age that was asked for.
        asked: Duration,
        /// The least age, [`Retention::LEAST`].
        kept: Duration,
    },
    /// One transaction cannot delete so many rows.
    #[error("the retention deletes {asked} rows at once; use 1 to {most}")]
    #[non_exhaustive]
    RowsAtOnce {
        /// The number that was asked for.
        asked: usize,
        /// The most, [`Retention::MOST_AT_ONCE`].
        most: usize,
    },
    /// Some shards failed.
    #[error("{}", failed.iter().map(|(shard, error)| format!("shard {shard}: {error}")).collect::<Vec<_>>().join("\n"))]
    #[non_exhaustive]
    Shards {
        /// The shards and the causes.
        failed: Vec<(ShardIdentifier, EventsError)>,
        /// What was deleted before the failures, on all shards.
        deleted: Deleted,
    },
}

impl Retention {
    /// The least age. Within it, lanes that lost a connection look rows up to find out what committed.
    pub const LEAST: Duration = Databases::OUTBOX_KEPT;

    /// How often a node runs a retention, unless [`every`](Self::every) says otherwise.
    pub const EVERY: Duration = Duration::from_secs(60 * 60);

    /// How many rows one transaction deletes at most, unless [`rows_at_once`](Self::rows_at_once) says
    /// otherwise.
    pub const AT_ONCE: usize = 1_000;

    /// The most rows that one transaction may delete.
    pub const MOST_AT_ONCE: usize = 10_000;

    /// Keeps everything.
    pub fn new() -> Self {
        Self::default()
    }

    /// What `ekbatan.events.retention` of the configuration says; a node does it by itself.
    ///
    /// ```
    /// # use ekbatan_core::shard::Databases;
    /// # use ekbatan_events::{Retention, RetentionError};
    /// # async fn run(databases: &Databases) -> Result<(), RetentionError> {
    /// Retention::configured(databases).run(databases).await?;
    /// # Ok(()) }
    /// ```
    pub fn configured(databases: &Databases) -> Self {
        Self::of(&databases.events_config().retention)
    }

    pub(crate) fn of(config: &RetentionConfig) -> Self {
        Self {
            events: config.events,
            dead_letters: config.dead_letters,
            keys: config.keys,
            inbox: config.inbox,
            every: Some(config.every),
            rows_at_once: Some(config.rows_at_once),
        }
    }

    /// Whether an age is set. If not, nothing is ever deleted.
    pub(crate) fn has_age(&self) -> bool {
        let Self { events, dead_letters, keys, inbox, .. } = self;
        [events, dead_letters, keys, inbox].into_iter().any(Option::is_some)
    }

    /// Deletes events that were written longer ago than this and that no handler needs, and rows of
    /// actions without events. The column `delivered` does not count: a reader of yours has to be
    /// done by then. Only as long as there is no handler of events, events that are not `delivered`
    /// stay.
    ///
    /// A handler that is registered later gets the events that are still there.
    pub fn events(mut self, age: Duration) -> Self {
        self.events = Some(age);
        self
    }

    /// Deletes dead letters that were settled longer ago than this.
    pub fn dead_letters(mut self, age: Duration) -> Self {
        self.dead_letters = Some(age);
        self
    }

    /// Deletes idempotency keys that were used longer ago than this, and keys of enqueued calls of which
    /// the last has ended. The keys of a handler's steps stay until its event is handled, those of a job's steps
    /// until its run has ended.
    pub fn keys(mut self, age: Duration) -> Self {
        self.keys = Some(age);
        self
    }

    /// Deletes messages that were handled longer ago than this. Choose more than the time within
    /// which the broker can deliver a message again.
    pub fn inbox(mut self, age: Duration) -> Self {
        self.inbox = Some(age);
        self
    }

    /// Sets how often a [node](crate::NodeBuilder::retention) runs it: after this time, give or take
    /// a half by chance.
    pub fn every(mut self, time: Duration) -> Self {
        self.every = Some(time);
        self
    }

    /// Sets how many rows one transaction deletes at most. More are faster, and hold locks for longer.
    pub fn rows_at_once(mut self, rows: usize) -> Self {
        self.rows_at_once = Some(rows);
        self
    }

    /// Deletes once, on all shards, in transactions of a thousand rows unless set. It waits for no lock
    /// that others hold, and may run in several processes at the same time. If a shard fails, the
    /// others are done nevertheless.
    pub async fn run(&self, databases: &Databases) -> Result<Deleted, RetentionError> {
        self.check()?;
        let shards: Vec<Shard> = databases.shards().collect();
        let running = shards.iter().map(|shard| async move {
            let mut deleted = Deleted::default();
            let answer = self.run_on(databases, shard, &mut deleted).await;
            (deleted, answer.err().map(|error| (shard.identifier(), error)))
        });
        let (mut deleted, mut failed) = (Deleted::default(), Vec::new());
        for (of_shard, failure) in futures_util::future::join_all(running).await {
            deleted.add(of_shard);
            failed.extend(failure);
        }
        if failed.is_empty() {
            Ok(deleted)
        } else {
            Err(RetentionError::Shards { failed, deleted })
        }
    }

    /// Runs it again and again, until the node leaves.
    pub(crate) async fn run_often(self, databases: Databases, mut leaving: watch::Receiver<bool>) {
        let every = self.every.unwrap_or(Self::EVERY).min(CENTURY);
        let mut pause = every.mul_f64(fastrand::f64());
        loop {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = leaving.changed() => return,
            }
            // What is cut off here is rolled back.
            let answer = tokio::select! {
                answer = self.run(&databases) => answer,
                _ = leaving.changed() => return,
            };
            match answer {
                Ok(deleted) => tracing::debug!(?deleted, "old rows were deleted"),
                Err(error) => tracing::warn!(%error, "old rows could not be deleted"),
            }
            pause = every.mul_f64(0.5 + fastrand::f64());
        }
    }

    /// Fails if an age is too short, or a transaction too large.
    pub(crate) fn check(&self) -> Result<(), RetentionError> {
        let Self { events, dead_letters, keys, inbox, every: _, rows_at_once } = self;
        let ages =
            [("events", events), ("dead_letters", dead_letters), ("keys", keys), ("inbox", inbox)];
        for (rows, age) in ages {
            if let Some(asked) = age.filter(|age| *age < Self::LEAST) {
                return Err(RetentionError::TooYoung { rows, asked, kept: Self::LEAST });
            }
        }
        let most = Self::MOST_AT_ONCE;
        if let Some(asked) = rows_at_once.filter(|rows| !(1..=most).contains(rows)) {
            return Err(RetentionError::RowsAtOnce { asked, most });
        }
        Ok(())
    }

    async fn run_on(
        &self,
        databases: &Databases,
        shard: &Shard,
        deleted: &mut Deleted,
    ) -> Result<(), EventsError> {
        let Self { events, dead_letters, keys, inbox, .. } = *self;
        let now = databases.clock().now();
        let at_once = self.rows_at_once.unwrap_or(Self::AT_ONCE);
        let delete = |rows, age| delete(shard, rows, now, age, at_once);
        if let Some(age) = keys {
            deleted.keys = delete(OldRows::KEYS, age).await?;
            deleted.keys += delete(OldRows::ENQUEUED_KEYS, age).await?;
        }
        if let Some(age) = inbox {
            deleted.inbox = delete(OldRows::INBOX, age).await?;
        }
        if let Some(age) = dead_letters {
            let settled = OldRows::of(DeadLetter::TABLE, "settled", "id");
            deleted.dead_letters = delete(settled, age).await?;
        }
        if let Some(age) = events {
            let subscriptions = Registrar::new(databases, shard).read().await?;
            let handled = shard.delete_handled(&subscriptions, age, now, at_once).await;
            deleted.events = handled.map_err(EventsError::of_transaction)?;
            let settled = OldRows::of(RemoteCall::TABLE, "settled", "id");
            deleted.remote_calls = delete(settled.needed_for_event("event_id"), age).await?;
        }
        deleted.fences = shard.prune_fences(at_once).await.map_err(EventsError::of_transaction)?;
        if let Some(age) = keys {
            let steps = delete_steps(databases, shard, before(now, age), at_once);
            deleted.keys += steps.await?;
        }
        // A decision is needed as long as the row of a key or of a message may be a claim. At the end, because
        // the claim may be on any shard.
        if let (Some(keys), Some(inbox)) = (keys, inbox) {
            let age = keys.max(inbox).saturating_add(Self::LEAST);
            if !has_step_claims(databases, before(now, age)).await? {
                delete(OldRows::DECISIONS, age).await?;
            }
        }
        Ok(())
    }
}

/// Whether a step that is older than this is still a claim: its event or its run may be begun again, however old it is.
async fn has_step_claims(
    databases: &Databases,
    before: DateTime<Utc>,
) -> Result<bool, EventsError> {
    for shard in databases.shards() {
        if shard.has_old_step_claims(before).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Deletes keys of steps whose delivery is not on this shard any more, or whose run has ended. What the others
/// belong to may be begun again.
async fn delete_steps(
    databases: &Databases,
    shard: &Shard,
    before: DateTime<Utc>,
    at_once: usize,
) -> Result<u64, EventsError> {
    let (mut deleted, mut after) = (0, None);
    loop {
        let mut page = shard.old_step_keys(before, after, at_once).await?;
        let is_last = page.len() < at_once;
        after = page.last().copied();
        let delivery = |key: &OldStepKey| match key.owner {
            Some(StepOwner::Delivery(delivery)) => Some(delivery),
            _ => None,
        };
        let ids: HashSet<Uuid> = page.iter().filter_map(delivery).collect();
        let ids: Vec<_> = ids.into_iter().map(Id::from_uuid).collect();
        let deliveries = databases.repository::<Delivery>().on_shard(shard);
        let rows = deliveries.find_by_ids(&ids).await?;
        let left: HashSet<Uuid> = rows.iter().map(|row| row.id.uuid()).collect();
        let has_runs = page.iter().any(|key| matches!(key.owner, Some(StepOwner::Run(_))));
        // Jobs are stored on the default shard.
        let open =
            if has_runs { databases.default_shard().open_runs().await? } else { HashSet::new() };
        page.retain(|key| match key.owner {
            Some(StepOwner::Delivery(delivery)) => !left.contains(&delivery),
            Some(StepOwner::Run(run)) => !open.contains(&run),
            None => true,
        });
        shard.delete_step_keys(&page).await?;
        deleted += page.len() as u64;
        if is_last {
            return Ok(deleted);
        }
    }
}

impl Deleted {
    fn add(&mut self, other: Self) {
        let Self { events, dead_letters, keys, inbox, fences, remote_calls } = other;
        self.events += events;
        self.dead_letters += dead_letters;
        self.keys += keys;
        self.inbox += inbox;
        self.fences += fences;
        self.remote_calls += remote_calls;
    }
}

async fn delete(
    shard: &Shard,
    rows: OldRows,
    now: DateTime<Utc>,
    age: Duration,
    at_once: usize,
) -> Result<u64, EventsError> {
    shard.delete_old(rows, before(now, age), at_once).await.map_err(EventsError::of_transaction)
}

fn before(now: DateTime<Utc>, age: Duration) -> DateTime<Utc> {
    now - age.min(CENTURY)
}
