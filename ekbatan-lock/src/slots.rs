//! Several slots under one key, which semaphores and read/write locks consist of.
//!
//! Each slot is a key of its own: `gateway#0`, `gateway#1` and so on. A caller that finds a slot free
//! takes it. A caller that has to wait queues for one more key, the turn: `gateway#turn`. The caller
//! that has the turn waits for the slots, and the others wait for the turn.
//!
//! Invariants: only the caller that has the turn waits for slots, so that callers cannot wait for
//! each other in a circle. While somebody has the turn, others queue behind it, so that nobody
//! overtakes a caller that waits, except for those that looked for the turn before it was taken. A
//! caller that loses the turn gives back what it has and queues again.

use std::fmt;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::try_join_all;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use crate::options::countable;
use crate::provider::lock_provider::check;
use crate::{
    BackendError, KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockScope, LossCause,
};

/// The greatest number of slots. A caller that waits asks for all of them.
pub(crate) const MOST: usize = 128;

/// How many slots a caller looks at, one after another, before it queues for the turn, where it
/// waits for all slots together.
const LOOKS: usize = 3;

/// For how long the server keeps the turn of a process that has died. Each process renews it.
const TURN: Duration = Duration::from_secs(5);

/// How often a lease is extended within its time, while its caller waits for other slots.
const TOP_UPS: u32 = 3;

/// A lease that has lost more than this part of its time, while its caller waited for other slots,
/// is extended.
const WAITED_PART: u32 = 10;

pub(crate) struct Slots<'l, P: ?Sized> {
    pub(crate) locks: &'l P,
    pub(crate) key: LockKey,
    pub(crate) count: usize,
    /// What the slots are, for messages.
    pub(crate) what: &'static str,
}

impl<P: KeyedLockProvider + ?Sized> Slots<'_, P> {
    /// Takes one slot. Returns `None` if all of them were taken during the whole wait.
    pub(crate) async fn take_one(&self, options: &LockOptions) -> Result<Option<Lease>, LockError> {
        self.check(options)?;
        if let Some(held) = self.reenter().pop() {
            return Ok(Some(held));
        }
        let wait = Wait::begin(options);
        if wait.is_try {
            return self.look(options, self.count).await;
        }
        match tokio::time::timeout_at(wait.until, self.look(options, LOOKS)).await {
            Ok(Ok(Some(lease))) => return Ok(Some(lease)),
            // Requests that fail are repeated while the caller waits for the turn.
            Ok(Ok(None) | Err(_)) => {}
            Err(_) => return Err(self.unanswered(options)),
        }
        loop {
            let Some(turn) = self.take_turn(&wait).await? else { return Ok(None) };
            if let Some(held) = self.reenter().pop() {
                return Ok(Some(held));
            }
            tokio::select! {
                biased;
                taken = self.wait_for_one(options, &wait) => return taken,
                cause = turn.lost() => self.lost_turn(&cause),
            }
        }
    }

    /// Takes all slots. Returns `None` if not all of them could be had within the wait.
    pub(crate) async fn take_all(
        &self,
        options: &LockOptions,
    ) -> Result<Option<Vec<Lease>>, LockError> {
        self.check(options)?;
        if let Some(held) = self.reenter_all()? {
            return Ok(Some(held));
        }
        let wait = Wait::begin(options);
        loop {
            let Some(turn) = self.take_turn(&wait).await? else { return Ok(None) };
            // Calls beside this one may have taken slots meanwhile.
            if let Some(held) = self.reenter_all()? {
                return Ok(Some(held));
            }
            tokio::select! {
                biased;
                taken = self.wait_for_all(options, &wait) => return taken,
                cause = turn.lost() => self.lost_turn(&cause),
            }
        }
    }

    fn check(&self, options: &LockOptions) -> Result<(), LockError> {
        check(&self.key, options)?;
        if (1..=MOST).contains(&self.count) {
            return Ok(());
        }
        let (key, what, count) = (self.key.clone(), self.what, self.count);
        Err(LockError::Count { key, what, count, most: MOST })
    }

    fn turn(&self) -> LockKey {
        part_of(&self.key, "turn")
    }

    fn slot(&self, n: usize) -> LockKey {
        part_of(&self.key, n)
    }

    fn all(&self) -> Vec<LockKey> {
        (0..self.count).map(|n| self.slot(n)).collect()
    }

    /// The slots that the scope, or one around it, holds.
    fn reenter(&self) -> Vec<Lease> {
        if LockScope::current().is_none() {
            return Vec::new();
        }
        self.all().iter().filter_map(|slot| self.locks.reenter(slot)).collect()
    }

    /// All slots, if the scope holds them. An error if it holds only some: then it reads.
    fn reenter_all(&self) -> Result<Option<Vec<Lease>>, LockError> {
        match self.reenter() {
            held if held.len() == self.count => Ok(Some(held)),
            held if held.is_empty() => Ok(None),
            _ => Err(LockError::Upgrade { key: self.key.clone() }),
        }
    }

    /// Looks for a free slot, unless somebody waits for one. Begins at any slot, because callers
    /// that began at the same one would find it taken.
    async fn look(&self, options: &LockOptions, most: usize) -> Result<Option<Lease>, LockError> {
        if self.locks.inspect(&self.turn()).await?.is_some() {
            return Ok(None);
        }
        let only_try = LockOptions { max_wait: Duration::ZERO, ..*options };
        let first = fastrand::usize(..self.count);
        for n in (first..self.count).chain(0..first).take(most) {
            if let Some(lease) = self.locks.take(&self.slot(n), &only_try).await? {
                return Ok(Some(lease));
            }
        }
        Ok(None)
    }

    async fn take_turn(&self, wait: &Wait) -> Result<Option<Lease>, LockError> {
        let Some(left) = wait.left() else { return Ok(None) };
        let options = LockOptions::wait(left).hold(Duration::MAX).renewed(TURN);
        // In a scope of its own, so that calls beside each other in one scope do not share a turn.
        LockScope::run(self.locks.take(&self.turn(), &options)).await
    }

    fn lost_turn(&self, cause: &LossCause) {
        tracing::debug!(key = %self.key, %cause, "a caller that waits has lost its turn, and queues again");
    }

    /// Takes the first slot that is free. What the other slots grant meanwhile is released.
    async fn wait_for_one(
        &self,
        options: &LockOptions,
        wait: &Wait,
    ) -> Result<Option<Lease>, LockError> {
        let Some(left) = wait.left() else { return Ok(None) };
        let (slots, options) = (self.all(), LockOptions { max_wait: left, ..*options });
        let mut takes: FuturesUnordered<_> =
            slots.iter().map(|slot| self.locks.take(slot, &options)).collect();
        while let Some(taken) = takes.next().await {
            if let Some(lease) = taken? {
                return Ok(Some(lease));
            }
        }
        Ok(None)
    }

    /// Takes each slot as soon as it is free, and keeps it while the others are waited for. In the
    /// end, every lease lasts for about `max_hold`.
    async fn wait_for_all(
        &self,
        options: &LockOptions,
        wait: &Wait,
    ) -> Result<Option<Vec<Lease>>, LockError> {
        let Some(left) = wait.left() else { return Ok(None) };
        let (slots, options) = (self.all(), LockOptions { max_wait: left, ..*options });
        let mut takes: FuturesUnordered<_> =
            slots.iter().map(|slot| self.locks.take(slot, &options)).collect();
        let mut leases = Vec::new();
        let often = countable(options.max_hold) / TOP_UPS;
        let mut next_top_up = Instant::now() + often;
        loop {
            tokio::select! {
                taken = takes.next() => match taken {
                    Some(taken) => match taken? {
                        Some(lease) => leases.push(lease),
                        None => return Ok(None),
                    },
                    None => break,
                },
                () = tokio::time::sleep_until(next_top_up) => {
                    top_up(&leases, &options).await?;
                    next_top_up = Instant::now() + often;
                }
            }
        }
        top_up(&leases, &options).await?;
        leases.iter().try_for_each(Lease::check)?;
        leases.sort_by(|a, b| a.key().cmp(b.key()));
        Ok(Some(leases))
    }

    fn unanswered(&self, options: &LockOptions) -> LockError {
        let why = format!("no answer within {:?}", options.max_wait);
        LockError::of(&self.key, BackendError::in_doubt(why))
    }
}

/// A key that belongs to this one: at the same level and on the same shard.
pub(crate) fn part_of(key: &LockKey, name: impl fmt::Display) -> LockKey {
    let part = LockKey::named(&format!("{}#{name}", key.id())).at_level(key.level());
    match key.shard() {
        Some(shard) => part.on_shard(shard),
        None => part,
    }
}

/// Has the leases last for `max_hold` from now, if they have lost a part of it.
async fn top_up(leases: &[Lease], options: &LockOptions) -> Result<(), LockError> {
    let max_hold = countable(options.max_hold);
    let gone = |lease: &Lease| max_hold.saturating_sub(lease.remaining());
    let short = leases.iter().filter(|lease| gone(lease) > max_hold / WAITED_PART);
    try_join_all(short.map(|lease| lease.extend(gone(lease)))).await.map(drop)
}

/// The time that a caller waits, all steps together.
struct Wait {
    until: Instant,
    /// Whether the caller does not wait.
    is_try: bool,
}

impl Wait {
    fn begin(options: &LockOptions) -> Self {
        let is_try = options.max_wait.is_zero();
        Self { until: Instant::now() + countable(options.max_wait), is_try }
    }

    /// What is left of the wait; `None` if it is used up. A wait that is used up must not become
    /// a try.
    fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        (self.is_try || !left.is_zero()).then_some(left)
    }
}
