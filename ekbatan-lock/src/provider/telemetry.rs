//! Observability of locks: a span for each acquisition and each hold, and counters.
//!
//! Invariants: spans have level INFO and are named `ekbatan.lock.*`. No caller waits for them.
//! Values that only a span shows are fetched only while the span is enabled.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tracing::{Span, field};

use crate::provider::lease::Ended;
use crate::{Holder, Lease, LockError, LockKey, LossCause};

/// The counters of a provider since it was made. Durations are sums.
///
/// They count this process only. `ActionExecutor::fence_refusals` counts the commits that the
/// fence of a lease rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LockCounters {
    /// Leases that were granted. Re-entering within a scope does not count.
    pub granted: u64,
    /// Those of the granted leases that were passed on within this process, without a round trip.
    pub handed_on: u64,
    /// Callers that wanted a key while another holder had it, in this process or another one.
    pub contended: u64,
    /// Callers that did not get their key within `max_wait`.
    pub busy: u64,
    /// How often a scope re-entered a lock that it held.
    pub reentered: u64,
    /// Leases that ended without being released.
    pub lost: u64,
    /// Tries for a busy key that followed a hint from the server.
    pub hints: u64,
    /// Tries for a busy key without a hint, after the poll interval.
    pub polls: u64,
    /// Time from request to grant, summed over all granted leases.
    pub waited: Duration,
    /// Time from grant to end, summed over all leases that are over.
    pub held: Duration,
    /// Time between the end of one lease and the begin of the next, where a local caller waited.
    pub between: Duration,
}

/// [`LockCounters`] while they are counted.
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
    /// In microseconds, like the two that follow.
    pub(crate) waited: AtomicU64,
    pub(crate) held: AtomicU64,
    pub(crate) between: AtomicU64,
}

pub(crate) fn increment(count: &AtomicU64) {
    count.fetch_add(1, Relaxed);
}

pub(crate) fn add_duration(sum: &AtomicU64, time: Duration) {
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

/// The span of one acquisition, from the request to the answer.
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

/// Records the answer in the span of its acquisition.
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

/// Records the holder that the server names in the span of a waiter. The holder may be in
/// another process.
pub(crate) fn waited_for(acquiring: &Span, holder: &Holder) {
    acquiring
        .record("ekbatan.lock.waited_for", holder.holder.as_str())
        .record("ekbatan.lock.waited_for_token", holder.token);
}

/// The span of one hold, from the grant to the end. It is a sibling of its acquisition.
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

/// Records how long the key was free before this waiter got it.
pub(crate) fn between(counts: &Counts, acquiring: &Span, time: Duration) {
    add_duration(&counts.between, time);
    acquiring.record("ekbatan.lock.between_us", micros(time));
}

/// Records the end in the span of a hold.
pub(crate) fn over(counts: &Counts, holding: &Span, key: &LockKey, ended: &Ended, held: Duration) {
    add_duration(&counts.held, held);
    holding.record("ekbatan.lock.held_us", micros(held));
    let outcome = match ended {
        Ended::Released => "released",
        Ended::Lost(cause) => {
            increment(&counts.lost);
            holding.in_scope(|| {
                // The level of warnings shows no span, which has the key, too.
                tracing::warn!(name: "ekbatan.lock.lost", %key, %cause, "a lease was lost");
            });
            match cause {
                LossCause::Expired(_) => "expired",
                LossCause::NotRenewed(_) => "not_renewed",
                LossCause::SessionGone(_) => "session_gone",
                LossCause::Taken => "taken",
                LossCause::Released => "released",
                LossCause::Forced(_) => "forced",
                LossCause::Closed => "closed",
                LossCause::Abandoned => "abandoned",
            }
        }
    };
    holding.record("ekbatan.lock.outcome", outcome);
}
