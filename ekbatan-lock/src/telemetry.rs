//! What can be seen of locks: a span of each acquisition and of each hold, and counters.
//!
//! What always holds: spans are of level INFO and named `ekbatan.lock.*`; nobody waits for
//! them, and what is only there to be shown is not asked for while nobody looks.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tracing::{Span, field};

use crate::lease::Ended;
use crate::{Holder, Lease, LockError, LockKey, LossCause};

/// What a provider has counted since it was made; times are sums.
///
/// All of it is of this process. Commits that were refused by a lease's fence are counted
/// where they are refused: `ActionExecutor::fence_refusals`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LockCounters {
    /// Leases that were handed out; entering again within a scope is no new one.
    pub granted: u64,
    /// Of these, those that were passed on within this process without a trip.
    pub handed_on: u64,
    /// How often somebody wanted a key that somebody else had, in this process or another.
    pub contended: u64,
    /// How often a key was not to be had in the time that there was.
    pub busy: u64,
    /// How often a scope entered a lock again that it held.
    pub reentered: u64,
    /// Leases that ended by another cause than their release.
    pub lost: u64,
    /// How often the server was asked again because there was word of the key.
    pub hints: u64,
    /// How often it was asked again because there was none.
    pub polls: u64,
    /// From asking to having, of all that were handed out.
    pub waited: Duration,
    /// From having to the end, of all that are over.
    pub held: Duration,
    /// From the end of one lease to the next one's beginning, where it was waited for here.
    pub between: Duration,
}

/// [`LockCounters`] as they are counted.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) granted: AtomicU64,
    pub(crate) handed_on: AtomicU64,
    pub(crate) contended: AtomicU64,
    pub(crate) busy: AtomicU64,
    pub(crate) reentered: AtomicU64,
    pub(crate) lost: AtomicU64,
    pub(crate) hints: AtomicU64,
    pub(crate) polls: AtomicU64,
    /// In microseconds, as the ones below.
    pub(crate) waited: AtomicU64,
    pub(crate) held: AtomicU64,
    pub(crate) between: AtomicU64,
}

pub(crate) fn one_more(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

pub(crate) fn so_long(sum: &AtomicU64, time: Duration) {
    sum.fetch_add(micros(time), Relaxed);
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Counts {
    pub(crate) fn read(&self) -> LockCounters {
        let count = |count: &AtomicU64| count.load(Relaxed);
        let time = |sum: &AtomicU64| Duration::from_micros(sum.load(Relaxed));
        LockCounters {
            granted: count(&self.granted),
            handed_on: count(&self.handed_on),
            contended: count(&self.contended),
            busy: count(&self.busy),
            reentered: count(&self.reentered),
            lost: count(&self.lost),
            hints: count(&self.hints),
            polls: count(&self.polls),
            waited: time(&self.waited),
            held: time(&self.held),
            between: time(&self.between),
        }
    }
}

/// The span of one acquisition, from asking to the answer.
pub(crate) fn acquiring(provider: &'static str, key: &LockKey) -> Span {
    tracing::info_span!(
        "ekbatan.lock.acquire",
        ekbatan.lock.key = %key,
        ekbatan.lock.provider = provider,
        ekbatan.lock.outcome = field::Empty,
        ekbatan.lock.token = field::Empty,
        ekbatan.lock.wait_us = field::Empty,
        ekbatan.lock.between_us = field::Empty,
        ekbatan.lock.handed_on = field::Empty,
        ekbatan.lock.waited_for = field::Empty,
        ekbatan.lock.waited_for_token = field::Empty,
    )
}

/// Writes the answer into the span of its acquisition.
pub(crate) fn answered(
    acquiring: &Span,
    answer: &Result<Option<Lease>, LockError>,
    waited: Duration,
) {
    acquiring.record("ekbatan.lock.wait_us", micros(waited));
    let outcome = match answer {
        Ok(Some(lease)) => {
            acquiring.record("ekbatan.lock.token", lease.token());
            "granted"
        }
        Ok(None) => "busy",
        Err(_) => "error",
    };
    acquiring.record("ekbatan.lock.outcome", outcome);
}

/// Writes the holder at the server, who may be another process, into the span of who waits.
pub(crate) fn waited_for(acquiring: &Span, holder: &Holder) {
    acquiring
        .record("ekbatan.lock.waited_for", holder.holder.as_str())
        .record("ekbatan.lock.waited_for_token", holder.token);
}

/// The span of one hold, from the grant to the end; a sibling of its acquisition.
pub(crate) fn holding(within: &Span, provider: &'static str, key: &LockKey, token: i64) -> Span {
    tracing::info_span!(
        parent: within,
        "ekbatan.lock.hold",
        ekbatan.lock.key = %key,
        ekbatan.lock.provider = provider,
        ekbatan.lock.token = token,
        ekbatan.lock.held_us = field::Empty,
        ekbatan.lock.outcome = field::Empty,
    )
}

/// Notes how long the key was nobody's before it was handed to this waiter.
pub(crate) fn between(counts: &Counts, acquiring: &Span, time: Duration) {
    so_long(&counts.between, time);
    acquiring.record("ekbatan.lock.between_us", micros(time));
}

/// Writes the end into the span of a hold.
pub(crate) fn over(counts: &Counts, holding: &Span, ended: &Ended, held: Duration) {
    so_long(&counts.held, held);
    holding.record("ekbatan.lock.held_us", micros(held));
    let outcome = match ended {
        Ended::Released => "released",
        Ended::Lost(cause) => {
            one_more(&counts.lost);
            holding.in_scope(|| {
                tracing::warn!(name: "ekbatan.lock.lost", %cause, "a lease was lost");
            });
            match cause {
                LossCause::Expired(_) => "expired",
                LossCause::NotRenewed(_) => "not_renewed",
                LossCause::SessionGone(_) => "session_gone",
                LossCause::Taken => "taken",
                LossCause::Forced(_) => "forced",
                LossCause::Closed => "closed",
            }
        }
    };
    holding.record("ekbatan.lock.outcome", outcome);
}
