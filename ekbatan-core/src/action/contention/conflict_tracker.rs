//! Which keys are hot: the adaptive strategy goes by this.
//!
//! Invariants: memory is bounded whatever the number of keys, because a key that is not hot
//! is only counted in a fixed sketch. A wrong guess costs speed only, because every strategy is
//! correct for every key.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use super::decaying_count::{ConflictSketch, DecayingCount};
use crate::domain::LockKey;

/// A key with so many recent conflicts becomes hot. A single conflict may be chance.
const HOT: f32 = 1.5;
/// The count of a key on which calls keep meeting, so that it cools only after some seconds.
const WARM: f32 = 8.0;
/// A hot key with a smaller count is no longer hot.
const COOL: f32 = 0.5;
/// When so many groups recently lost to other processes, groups take turns. A few groups lose
/// to late optimistic calls of this process whenever a key becomes hot.
const CONTESTED: f32 = 2.5;
/// How long groups take turns before the key is tried without a lease. The time doubles if
/// other processes are then still there.
const FIRST_TURNS: Duration = Duration::from_secs(5);
const LONGEST_TURNS: Duration = Duration::from_secs(80);
/// The largest number of hot keys. Further keys stay optimistic until some have cooled.
const MOST_HOT: usize = 1_024;
/// The least time between two removals of all cooled keys.
const SWEEP: Duration = Duration::from_millis(100);

/// How adaptive calls of a key run at present.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handling {
    /// Each call commits by itself and is retried after a conflict.
    Optimistic,
    /// Calls of this process run one after another and commit together.
    Coalesced,
    /// As [`Coalesced`](Handling::Coalesced), and groups of several processes take turns by a
    /// lease.
    TakingTurns,
}

/// A key on which calls conflict.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HotKey {
    /// The key. That of a row of a model, for calls without a key, is `row of <model>:<id>`.
    pub key: LockKey,
    /// How its calls run.
    pub handling: Handling,
    /// The number of calls that met there recently. It halves every second.
    pub temperature: f32,
    /// The time since the key became hot.
    pub hot_for: Duration,
}

/// The state of a hot key.
#[derive(Debug, Clone, Copy)]
struct KeyState {
    since: Duration,
    temperature: DecayingCount,
    /// Groups that lost to other processes.
    contested: DecayingCount,
    /// The time until which groups take turns, and for how long they do.
    turns: Option<(Duration, Duration)>,
    /// What the log says of how its calls run, and since when.
    logged: Handling,
    logged_at: Duration,
}

impl KeyState {
    fn handling(&self, now: Duration) -> Handling {
        match self.turns {
            Some((until, _)) if now < until => Handling::TakingTurns,
            _ => Handling::Coalesced,
        }
    }

    /// How its calls run, also once it has cooled.
    fn present(&self, now: Duration) -> Handling {
        if self.is_cool(now) { Handling::Optimistic } else { self.handling(now) }
    }

    fn is_cool(&self, now: Duration) -> bool {
        self.handling(now) != Handling::TakingTurns && self.temperature.at(now) < COOL
    }
}

#[derive(Default)]
struct HotKeys {
    keys: HashMap<LockKey, KeyState>,
    /// When cooled keys were last removed.
    swept: Duration,
}

impl HotKeys {
    /// Makes room for one more key, if that is possible.
    fn make_room(&mut self, now: Duration) -> Vec<Change> {
        let is_full = self.keys.len() >= MOST_HOT;
        if is_full && now >= self.swept + SWEEP { self.sweep(now) } else { Vec::new() }
    }

    /// Removes the keys that have cooled.
    fn sweep(&mut self, now: Duration) -> Vec<Change> {
        self.swept = now;
        self.keys
            .extract_if(|_, hot| hot.is_cool(now))
            .map(|(key, hot)| Change { key, from: hot.logged, to: Handling::Optimistic })
            .collect()
    }
}

/// How the calls of a key ran before, and how they run now.
#[derive(Debug, Clone, PartialEq)]
struct Change {
    key: LockKey,
    from: Handling,
    to: Handling,
}

impl Change {
    /// To be called without a lock: a subscriber may take long.
    fn log(&self) {
        let Self { key, from, to } = self;
        tracing::info!(name: "contention", %key, ?from, ?to, "the strategy of a key changed");
    }
}

/// Tracks the conflicts on the keys of one executor. Times count from its creation.
pub(super) struct ConflictTracker {
    created: Instant,
    /// Whether groups can take turns.
    has_leases: bool,
    sketch: ConflictSketch,
    hot: RwLock<HotKeys>,
    /// The number of hot keys, so that no call takes the lock while it is zero.
    hot_count: AtomicUsize,
}

impl ConflictTracker {
    pub(super) fn new(has_leases: bool) -> Self {
        Self {
            created: Instant::now(),
            has_leases,
            sketch: ConflictSketch::default(),
            hot: RwLock::default(),
            hot_count: AtomicUsize::new(0),
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.created.elapsed()
    }

    /// Whether any key may be hot. Now and then removes the keys that have cooled and that no
    /// call has asked for.
    pub(super) fn has_hot_keys(&self, now: Duration) -> bool {
        if self.hot_count.load(Ordering::Relaxed) == 0 {
            return false;
        }
        if now >= self.read().swept + SWEEP {
            let mut hot = self.write();
            let cooled = hot.sweep(now);
            self.hot_count.store(hot.keys.len(), Ordering::Relaxed);
            drop(hot);
            cooled.iter().for_each(Change::log);
        }
        true
    }

    /// How a call of this key runs.
    pub(super) fn handling(&self, key: &LockKey, now: Duration) -> Handling {
        if self.hot_count.load(Ordering::Relaxed) == 0 {
            return Handling::Optimistic;
        }
        let Some(hot) = self.read().keys.get(key).copied() else { return Handling::Optimistic };
        let handling = hot.present(now);
        if handling != hot.logged {
            self.change(key, now);
        }
        handling
    }

    /// Notes that the calls of a key run in another way by now, because time has passed.
    fn change(&self, key: &LockKey, now: Duration) {
        let mut known = self.write();
        // Another call may have met a conflict meanwhile, or noted something later.
        let Some(hot) = known.keys.get_mut(key).filter(|hot| hot.logged_at <= now) else { return };
        let (from, to) = (hot.logged, hot.present(now));
        (hot.logged, hot.logged_at) = (to, now);
        if to == Handling::Optimistic {
            known.keys.remove(key);
            self.hot_count.store(known.keys.len(), Ordering::Relaxed);
        }
        drop(known);
        if from != to {
            Change { key: key.clone(), from, to }.log();
        }
    }

    /// The hottest of the keys and how its calls run; the first one if none is hot. All calls
    /// of a moment choose alike, so those that share a hot key meet in its queue.
    pub(super) fn hottest<'k>(
        &self,
        keys: &'k [LockKey],
        now: Duration,
    ) -> (&'k LockKey, Handling) {
        let first = &keys[0];
        if keys.len() == 1 || self.hot_count.load(Ordering::Relaxed) == 0 {
            return (first, self.handling(first, now));
        }
        let temperature = |key: &LockKey| {
            let known = self.read();
            known.keys.get(key).map_or(0.0, |hot| hot.temperature.at(now))
        };
        let hot = keys.iter().map(|key| (key, self.handling(key, now), temperature(key)));
        let hot = hot.filter(|(_, handling, _)| *handling != Handling::Optimistic);
        let hottest = hot.reduce(|best, next| if next.2 > best.2 { next } else { best });
        hottest.map_or((first, Handling::Optimistic), |(key, handling, _)| (key, handling))
    }

    /// Records that an optimistic call met a changed row.
    pub(super) fn conflicted(&self, key: &LockKey, now: Duration) {
        if self.sketch.count(key, now) < HOT {
            return;
        }
        let mut hot = self.write();
        if let Some(hot) = hot.keys.get_mut(key) {
            return hot.temperature.increment(now);
        }
        let mut changes = hot.make_room(now);
        if hot.keys.len() < MOST_HOT {
            let temperature = DecayingCount::new(WARM, now);
            let (contested, logged) = (DecayingCount::default(), Handling::Coalesced);
            let (since, logged_at, turns) = (now, now, None);
            let state = KeyState { since, temperature, contested, turns, logged, logged_at };
            hot.keys.insert(key.clone(), state);
            changes.push(Change { key: key.clone(), from: Handling::Optimistic, to: logged });
        }
        self.hot_count.store(hot.keys.len(), Ordering::Relaxed);
        drop(hot);
        changes.iter().for_each(Change::log);
    }

    /// Records that a call was committed together with others. This keeps the key hot; without
    /// it the key cools.
    pub(super) fn met_others(&self, key: &LockKey, now: Duration) {
        // Every member of every group calls this, so the common case takes only a read lock.
        let is_warm = |hot: &KeyState| hot.temperature.at(now) > WARM / 2.0;
        if self.read().keys.get(key).is_none_or(is_warm) {
            return;
        }
        if let Some(hot) = self.write().keys.get_mut(key) {
            hot.temperature = DecayingCount::new(hot.temperature.at(now).max(WARM), now);
        }
    }

    /// Records that a group met a changed row. Coalesced calls of one process do not conflict
    /// with each other, so most often another process changed it.
    pub(super) fn lost_to_others(&self, key: &LockKey, now: Duration) {
        let mut known = self.write();
        let Some(hot) = known.keys.get_mut(key) else { return };
        hot.temperature.increment(now);
        hot.contested.increment(now);
        let before = hot.handling(now);
        let enough = hot.contested.at(now) >= CONTESTED;
        if !self.has_leases || before == Handling::TakingTurns || !enough {
            return;
        }
        // Soon after the last turns the other processes are still there; later they are new.
        let turns = match hot.turns {
            Some((ended, turns)) if now < ended + turns => (turns * 2).min(LONGEST_TURNS),
            _ => FIRST_TURNS,
        };
        hot.turns = Some((now + turns, turns));
        hot.contested = DecayingCount::default();
        let from = std::mem::replace(&mut hot.logged, Handling::TakingTurns);
        hot.logged_at = now;
        drop(known);
        // Otherwise the end of the last turns was not noticed, and nothing has changed.
        if from != Handling::TakingTurns {
            Change { key: key.clone(), from, to: Handling::TakingTurns }.log();
        }
    }

    /// The hot keys, the hottest first.
    pub(super) fn list(&self, now: Duration) -> Vec<HotKey> {
        let known = self.read();
        let hot = known.keys.iter().filter(|(_, hot)| !hot.is_cool(now));
        let mut list: Vec<HotKey> = hot
            .map(|(key, hot)| HotKey {
                key: key.clone(),
                handling: hot.handling(now),
                temperature: hot.temperature.at(now),
                hot_for: now.saturating_sub(hot.since),
            })
            .collect();
        drop(known);
        list.sort_by(|a, b| b.temperature.total_cmp(&a.temperature));
        list
    }

    fn read(&self) -> RwLockReadGuard<'_, HotKeys> {
        self.hot.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HotKeys> {
        self.hot.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: usize) -> LockKey {
        LockKey::of("wallet", name)
    }

    const fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    fn hot() -> (ConflictTracker, LockKey) {
        let (tracker, key) = (ConflictTracker::new(true), key(1));
        tracker.conflicted(&key, secs(1));
        assert_eq!(tracker.handling(&key, secs(1)), Handling::Optimistic);
        tracker.conflicted(&key, secs(1));
        (tracker, key)
    }

    fn lose_three(tracker: &ConflictTracker, key: &LockKey, now: Duration) {
        for _ in 0..2 {
            tracker.lost_to_others(key, now);
            assert_eq!(tracker.handling(key, now), Handling::Coalesced);
        }
        tracker.lost_to_others(key, now);
        assert_eq!(tracker.handling(key, now), Handling::TakingTurns);
    }

    #[test]
    fn frequent_conflicts_make_a_key_hot_and_rare_ones_do_not() {
        let (tracker, hot) = hot();
        assert_eq!(tracker.handling(&hot, secs(1)), Handling::Coalesced);
        assert_eq!(tracker.handling(&key(2), secs(1)), Handling::Optimistic);
        for minute in 1..100 {
            tracker.conflicted(&key(3), secs(60 * minute));
            assert_eq!(tracker.handling(&key(3), secs(60 * minute)), Handling::Optimistic);
        }
    }

    #[test]
    fn conflicts_are_still_noticed_after_months() {
        let tracker = ConflictTracker::new(true);
        for day in 0..120 {
            let now = secs(86_400 * day + 1);
            tracker.conflicted(&key(1), now);
            tracker.conflicted(&key(1), now);
            assert_eq!(tracker.handling(&key(1), now), Handling::Coalesced, "on day {day}");
            assert_eq!(tracker.handling(&key(1), now + secs(60)), Handling::Optimistic);
        }
    }

    #[test]
    fn a_key_stays_hot_while_calls_meet_and_cools_afterwards() {
        let (tracker, key) = hot();
        for second in 1..60 {
            tracker.met_others(&key, secs(second));
            assert_eq!(tracker.handling(&key, secs(second)), Handling::Coalesced);
        }
        assert_eq!(tracker.handling(&key, secs(70)), Handling::Optimistic);
        assert!(tracker.list(secs(70)).is_empty());
    }

    #[test]
    fn groups_that_lose_to_other_processes_take_turns_longer_each_time() {
        let (tracker, key) = hot();
        lose_three(&tracker, &key, secs(1));
        assert_eq!(tracker.handling(&key, secs(5)), Handling::TakingTurns);
        assert_eq!(tracker.handling(&key, secs(6)), Handling::Optimistic, "no call came");
        let (tracker, key) = hot();
        let mut now = secs(1);
        let mut last = Duration::ZERO;
        for _ in 0..6 {
            lose_three(&tracker, &key, now);
            let begun = now;
            while tracker.handling(&key, now) == Handling::TakingTurns {
                now += secs(1);
                tracker.met_others(&key, now);
            }
            assert!(now - begun >= last);
            last = now - begun;
        }
        assert_eq!(last, LONGEST_TURNS);
    }

    #[test]
    fn what_the_log_says_of_a_key_is_true_until_it_has_cooled() {
        let (tracker, key) = hot();
        let logged = |tracker: &ConflictTracker| tracker.read().keys[&key].logged;
        assert_eq!(logged(&tracker), Handling::Coalesced);
        lose_three(&tracker, &key, secs(1));
        assert_eq!(logged(&tracker), Handling::TakingTurns);
        tracker.met_others(&key, secs(5));
        assert_eq!(tracker.handling(&key, secs(6)), Handling::Coalesced);
        assert_eq!(logged(&tracker), Handling::Coalesced);
        // A call that looked at the clock before, and came late.
        tracker.handling(&key, secs(5));
        assert_eq!(logged(&tracker), Handling::Coalesced);
        // No call of the key comes any more.
        assert!(tracker.write().sweep(secs(7)).is_empty());
        let cooled = Change { key, from: Handling::Coalesced, to: Handling::Optimistic };
        assert_eq!(tracker.write().sweep(secs(60)), [cooled]);
    }

    #[test]
    fn without_leases_groups_do_not_take_turns() {
        let tracker = ConflictTracker::new(false);
        let key = key(1);
        tracker.conflicted(&key, secs(1));
        tracker.conflicted(&key, secs(1));
        for _ in 0..10 {
            tracker.lost_to_others(&key, secs(1));
            assert_eq!(tracker.handling(&key, secs(1)), Handling::Coalesced);
        }
    }

    #[test]
    fn the_hottest_key_is_listed_first_and_the_number_of_hot_keys_is_bounded() {
        let tracker = ConflictTracker::new(true);
        let make_hot = |name: usize, now: Duration| {
            for _ in 0..3 {
                tracker.conflicted(&key(name), now);
            }
        };
        (0..MOST_HOT).for_each(|name| make_hot(name, secs(1)));
        let list = tracker.list(secs(1));
        assert_eq!(list.len(), MOST_HOT);
        assert!(list.is_sorted_by(|a, b| a.temperature >= b.temperature));
        make_hot(MOST_HOT, secs(2));
        assert_eq!(tracker.handling(&key(MOST_HOT), secs(2)), Handling::Optimistic);
        make_hot(MOST_HOT, secs(60));
        assert_eq!(tracker.handling(&key(MOST_HOT), secs(60)), Handling::Coalesced);
        assert_eq!(tracker.list(secs(60)).len(), 1);
    }

    #[test]
    fn ten_million_keys_take_no_more_memory_than_one() {
        let tracker = ConflictTracker::new(true);
        for name in 0..10_000_000 {
            // Spread over time: no machine has so many conflicts at once.
            tracker.conflicted(&key(name), Duration::from_micros(name as u64 * 500));
        }
        let hot = tracker.read();
        assert!(hot.keys.len() <= MOST_HOT);
        assert!(hot.keys.capacity() <= 4 * MOST_HOT, "{}", hot.keys.capacity());
    }
}
