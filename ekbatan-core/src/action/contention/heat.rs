//! Which keys are hot: what the adaptive strategy goes by.
//!
//! What always holds: memory is bounded whatever the number of keys, since keys that are not
//! hot leave nothing but a count in a fixed sketch; and a wrong guess costs speed only, for
//! every mode is right for every key.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::domain::LockKey;

/// After how long half of a temperature is gone.
const HALF_LIFE: Duration = Duration::from_secs(1);
/// So many conflicts within about a half-life make a key hot: one may be bad luck.
const HOT: f32 = 1.5;
/// Where company keeps a key, so that it takes some seconds alone to cool.
const WARM: f32 = 8.0;
/// Below this a hot key is let go.
const COOL: f32 = 0.5;
/// So many groups lost to other processes within about a half-life make these take turns. A
/// few are lost to stragglers of this process whenever a key gets hot.
const CONTESTED: f32 = 2.5;
/// For how long a key is leased before it is tried without; doubled each time that this
/// turns out to have been too early.
const FIRST_TURNS: Duration = Duration::from_secs(5);
const LONGEST_TURNS: Duration = Duration::from_secs(80);
/// How many keys may be hot at once; those beyond stay optimistic until some have cooled.
const MOST_HOT: usize = 1_024;
/// How often is looked for keys that have cooled, when as many are hot as may be.
const SWEEP: Duration = Duration::from_millis(100);
const ROWS: usize = 2;
/// 256 KiB in all: a thousand conflicts a second, each on another key, make none look hot.
const WIDTH: usize = 16_384;

/// How calls of a key run for the time being.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Handling {
    /// Each for itself; whoever comes too late tries again.
    Optimistic,
    /// One after another in this process, and committed together.
    Coalesced,
    /// Coalesced, and groups of several processes take turns by a lease.
    TakingTurns,
}

/// A key on which calls meet.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HotKey {
    /// The key.
    pub key: LockKey,
    /// How its calls run.
    pub handling: Handling,
    /// How many calls met there lately; half of it is gone after a second.
    pub temperature: f32,
    /// For how long it has been hot.
    pub hot_for: Duration,
}

/// A count that fades.
#[derive(Debug, Clone, Copy, Default)]
struct Temperature {
    value: f32,
    at: Duration,
}

impl Temperature {
    fn at(self, now: Duration) -> f32 {
        let lives = now.saturating_sub(self.at).as_secs_f32() / HALF_LIFE.as_secs_f32();
        self.value * (-lives).exp2()
    }

    fn add(&mut self, amount: f32, now: Duration) {
        *self = Self { value: self.at(now) + amount, at: now.max(self.at) };
    }

    /// A temperature and its time in one word. The time is in milliseconds and begins anew
    /// every 49 days, so that a count as old as that may once be taken for a fresh one.
    fn pack(self) -> u64 {
        u64::from(self.value.to_bits()) << 32 | u64::from(self.at.as_millis() as u32)
    }

    fn unpack(word: u64, now: Duration) -> Self {
        let age = (now.as_millis() as u32).wrapping_sub(word as u32);
        // Somebody who looked at the clock a moment later was here before.
        let age = if age > u32::MAX / 2 { 0 } else { age };
        let at = now.saturating_sub(Duration::from_millis(age.into()));
        Self { value: f32::from_bits((word >> 32) as u32), at }
    }
}

#[derive(Debug, Clone, Copy)]
struct Hot {
    since: Duration,
    temperature: Temperature,
    /// Groups that lost to other processes.
    contested: Temperature,
    /// Until when groups take turns by a lease, and for how long that was.
    turns: Option<(Duration, Duration)>,
}

impl Hot {
    fn handling(&self, now: Duration) -> Handling {
        match self.turns {
            Some((until, _)) if now < until => Handling::TakingTurns,
            _ => Handling::Coalesced,
        }
    }

    fn is_cool(&self, now: Duration) -> bool {
        self.handling(now) != Handling::TakingTurns && self.temperature.at(now) < COOL
    }
}

#[derive(Default)]
struct HotKeys {
    keys: HashMap<LockKey, Hot>,
    /// When those that had cooled were last taken away.
    swept: Duration,
}

impl HotKeys {
    /// Whether one more has room.
    fn has_room(&mut self, now: Duration) -> bool {
        if self.keys.len() >= MOST_HOT && now >= self.swept + SWEEP {
            self.keys.retain(|_, hot| !hot.is_cool(now));
            self.swept = now;
        }
        self.keys.len() < MOST_HOT
    }
}

/// What is known of the keys of one executor. Times are those since it was made.
pub(super) struct Heat {
    sketch: Box<[AtomicU64]>,
    hashers: [RandomState; ROWS],
    hot: RwLock<HotKeys>,
    /// How many are hot, so that nobody takes the lock while none is.
    hot_count: AtomicUsize,
}

impl Default for Heat {
    fn default() -> Self {
        Self {
            sketch: (0..ROWS * WIDTH).map(|_| AtomicU64::default()).collect(),
            hashers: std::array::from_fn(|_| RandomState::new()),
            hot: RwLock::default(),
            hot_count: AtomicUsize::new(0),
        }
    }
}

impl Heat {
    /// How a call of this key is to run.
    pub(super) fn handling(&self, key: &LockKey, now: Duration) -> Handling {
        if self.hot_count.load(Ordering::Relaxed) == 0 {
            return Handling::Optimistic;
        }
        let Some(hot) = self.read().keys.get(key).copied() else { return Handling::Optimistic };
        if !hot.is_cool(now) {
            return hot.handling(now);
        }
        let mut hot = self.write();
        // Somebody may have warmed it meanwhile.
        if hot.keys.get(key).is_some_and(|hot| hot.is_cool(now)) {
            hot.keys.remove(key);
            self.hot_count.store(hot.keys.len(), Ordering::Relaxed);
            drop(hot);
            report(key, Handling::Coalesced, Handling::Optimistic);
        }
        Handling::Optimistic
    }

    /// An optimistic call came too late.
    pub(super) fn conflicted(&self, key: &LockKey, now: Duration) {
        if self.count(key, now) < HOT {
            return;
        }
        let mut hot = self.write();
        if let Some(hot) = hot.keys.get_mut(key) {
            return hot.temperature.add(1.0, now);
        }
        if !hot.has_room(now) {
            return;
        }
        let temperature = Temperature { value: WARM, at: now };
        let new = Hot { since: now, temperature, contested: Temperature::default(), turns: None };
        hot.keys.insert(key.clone(), new);
        self.hot_count.store(hot.keys.len(), Ordering::Relaxed);
        drop(hot);
        report(key, Handling::Optimistic, Handling::Coalesced);
    }

    /// Calls met in a line, which keeps the key warm; one that never meets anybody cools.
    pub(super) fn met(&self, key: &LockKey, now: Duration) {
        // It is said by each member of each group: to know that it is warm, a look is enough.
        let is_warm = |hot: &Hot| hot.temperature.at(now) > WARM / 2.0;
        if self.read().keys.get(key).is_none_or(is_warm) {
            return;
        }
        if let Some(hot) = self.write().keys.get_mut(key) {
            hot.temperature = Temperature { value: hot.temperature.at(now).max(WARM), at: now };
        }
    }

    /// A group came too late: calls of one process do not do that to each other. Without
    /// leases nobody can take turns.
    pub(super) fn contested(&self, key: &LockKey, now: Duration, leases: bool) {
        let mut known = self.write();
        let Some(hot) = known.keys.get_mut(key) else { return };
        hot.temperature.add(1.0, now);
        hot.contested.add(1.0, now);
        let before = hot.handling(now);
        let enough = hot.contested.at(now) >= CONTESTED;
        if !leases || before == Handling::TakingTurns || !enough {
            return;
        }
        // Soon after the last turns the others are still there; much later they are new.
        let turns = match hot.turns {
            Some((ended, turns)) if now < ended + turns => (turns * 2).min(LONGEST_TURNS),
            _ => FIRST_TURNS,
        };
        hot.turns = Some((now + turns, turns));
        hot.contested = Temperature::default();
        drop(known);
        report(key, before, Handling::TakingTurns);
    }

    /// The keys that are hot, the hottest first.
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

    /// Counts a conflict in the sketch. Keys that share a cell can only make a key look
    /// hotter than it is, and must share one in every row to do so.
    fn count(&self, key: &LockKey, now: Duration) -> f32 {
        let rows = self.hashers.iter().zip(self.sketch.chunks_exact(WIDTH));
        rows.map(|(hasher, row)| {
            let cell = &row[hasher.hash_one(key) as usize % WIDTH];
            let mut counted = Temperature::default();
            // The closure never gives up, so that the update does not either.
            let _ = cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                counted = Temperature::unpack(word, now);
                counted.add(1.0, now);
                Some(counted.pack())
            });
            counted.value
        })
        .fold(f32::INFINITY, f32::min)
    }

    fn read(&self) -> RwLockReadGuard<'_, HotKeys> {
        self.hot.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HotKeys> {
        self.hot.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn report(key: &LockKey, from: Handling, to: Handling) {
    tracing::info!(name: "contention", %key, ?from, ?to, "the strategy of a key changed");
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

    fn hot() -> (Heat, LockKey) {
        let (heat, key) = (Heat::default(), key(1));
        heat.conflicted(&key, secs(1));
        assert_eq!(heat.handling(&key, secs(1)), Handling::Optimistic);
        heat.conflicted(&key, secs(1));
        (heat, key)
    }

    fn contest(heat: &Heat, key: &LockKey, now: Duration) {
        for _ in 0..2 {
            heat.contested(key, now, true);
            assert_eq!(heat.handling(key, now), Handling::Coalesced);
        }
        heat.contested(key, now, true);
        assert_eq!(heat.handling(key, now), Handling::TakingTurns);
    }

    #[test]
    fn conflicts_close_to_each_other_make_a_key_hot_and_rare_ones_do_not() {
        let (heat, hot) = hot();
        assert_eq!(heat.handling(&hot, secs(1)), Handling::Coalesced);
        assert_eq!(heat.handling(&key(2), secs(1)), Handling::Optimistic);
        for minute in 1..100 {
            heat.conflicted(&key(3), secs(60 * minute));
            assert_eq!(heat.handling(&key(3), secs(60 * minute)), Handling::Optimistic);
        }
    }

    #[test]
    fn a_process_that_runs_for_months_still_notices() {
        let heat = Heat::default();
        for day in 0..120 {
            let now = secs(86_400 * day + 1);
            heat.conflicted(&key(1), now);
            heat.conflicted(&key(1), now);
            assert_eq!(heat.handling(&key(1), now), Handling::Coalesced, "on day {day}");
            assert_eq!(heat.handling(&key(1), now + secs(60)), Handling::Optimistic);
        }
    }

    #[test]
    fn company_keeps_a_key_hot_and_calls_alone_let_it_cool() {
        let (heat, key) = hot();
        for second in 1..60 {
            heat.met(&key, secs(second));
            assert_eq!(heat.handling(&key, secs(second)), Handling::Coalesced);
        }
        assert_eq!(heat.handling(&key, secs(70)), Handling::Optimistic);
        assert!(heat.list(secs(70)).is_empty());
    }

    #[test]
    fn groups_that_lose_to_other_processes_take_turns_for_a_while_longer_each_time() {
        let (heat, key) = hot();
        contest(&heat, &key, secs(1));
        assert_eq!(heat.handling(&key, secs(5)), Handling::TakingTurns);
        assert_eq!(heat.handling(&key, secs(6)), Handling::Optimistic, "nobody came");
        let (heat, key) = hot();
        let mut now = secs(1);
        let mut last = Duration::ZERO;
        for _ in 0..6 {
            contest(&heat, &key, now);
            let begun = now;
            while heat.handling(&key, now) == Handling::TakingTurns {
                now += secs(1);
                heat.met(&key, now);
            }
            assert!(now - begun >= last);
            last = now - begun;
        }
        assert_eq!(last, LONGEST_TURNS);
    }

    #[test]
    fn without_leases_nobody_takes_turns() {
        let (heat, key) = hot();
        for _ in 0..10 {
            heat.contested(&key, secs(1), false);
            assert_eq!(heat.handling(&key, secs(1)), Handling::Coalesced);
        }
    }

    #[test]
    fn the_hottest_come_first_and_more_than_a_bound_have_to_wait_until_some_cool() {
        let heat = Heat::default();
        let make_hot = |name: usize, now: Duration| {
            for _ in 0..3 {
                heat.conflicted(&key(name), now);
            }
        };
        (0..MOST_HOT).for_each(|name| make_hot(name, secs(1)));
        let list = heat.list(secs(1));
        assert_eq!(list.len(), MOST_HOT);
        assert!(list.is_sorted_by(|a, b| a.temperature >= b.temperature));
        make_hot(MOST_HOT, secs(2));
        assert_eq!(heat.handling(&key(MOST_HOT), secs(2)), Handling::Optimistic);
        make_hot(MOST_HOT, secs(60));
        assert_eq!(heat.handling(&key(MOST_HOT), secs(60)), Handling::Coalesced);
        assert_eq!(heat.list(secs(60)).len(), 1);
    }

    #[test]
    fn ten_million_keys_take_no_more_room_than_one() {
        let heat = Heat::default();
        for name in 0..10_000_000 {
            // Spread over time, as no machine conflicts on so many keys at once.
            heat.conflicted(&key(name), Duration::from_micros(name as u64 * 500));
        }
        assert_eq!(heat.sketch.len(), ROWS * WIDTH);
        let hot = heat.read();
        assert!(hot.keys.len() <= MOST_HOT);
        assert!(hot.keys.capacity() <= 4 * MOST_HOT, "{}", hot.keys.capacity());
    }
}
