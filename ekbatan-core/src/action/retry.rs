//! Which failures are retried, how often and after what wait.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ErrorKind;

/// How often one kind of failure is retried, and how long the executor waits before a retry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Budget {
    /// The number of retries. Waiting in the queue of a hot row may run the action again
    /// without one.
    pub retries: u32,
    /// The upper bound of the first wait. It doubles with each retry.
    pub base: Duration,
    /// The upper bound of every wait.
    pub cap: Duration,
}

impl Budget {
    /// Creates a budget of this many retries. Waits start at 10 ms and are capped at 1 s.
    pub const fn new(retries: u32) -> Self {
        Self { retries, base: Duration::from_millis(10), cap: Duration::from_secs(1) }
    }

    /// Sets the bound of the first wait.
    #[must_use]
    pub const fn base(mut self, base: Duration) -> Self {
        self.base = base;
        self
    }

    /// Sets the bound of every wait.
    #[must_use]
    pub const fn cap(mut self, cap: Duration) -> Self {
        self.cap = cap;
        self
    }

    /// The bound of the wait before retry `n`. The first retry is 0.
    pub fn bound(&self, n: u32) -> Duration {
        self.base.saturating_mul(2_u32.saturating_pow(n)).min(self.cap)
    }
}

/// Which failures are retried. Each kind has its own budget.
///
/// The default retries stale rows, deadlocks and serialization failures three times each, with
/// waits from 10 ms, capped at 1 s. Each wait is random between zero and its bound, so that
/// calls that conflicted once do not conflict again. By default the first retry of a stale row
/// waits in the queue of the row instead, see [`Contention::Adaptive`](super::Contention::Adaptive).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetryPolicy {
    budgets: BTreeMap<ErrorKind, Budget>,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self::none()
            .with(ErrorKind::Stale, Budget::new(3))
            .with(ErrorKind::Deadlock, Budget::new(3))
            .with(ErrorKind::Serialization, Budget::new(3))
    }
}

impl RetryPolicy {
    /// No retries.
    pub fn none() -> Self {
        Self { budgets: BTreeMap::new() }
    }

    /// Sets the budget of one kind.
    #[must_use]
    pub fn with(mut self, kind: ErrorKind, budget: Budget) -> Self {
        self.budgets.insert(kind, budget);
        self
    }

    /// Removes the budget of one kind.
    #[must_use]
    pub fn without(mut self, kind: ErrorKind) -> Self {
        self.budgets.remove(&kind);
        self
    }

    /// The budget of one kind, if it is retried.
    pub fn budget(&self, kind: ErrorKind) -> Option<Budget> {
        // A retry is not safe after these. Another holder, node or run may have taken over the
        // work, or all or a part of the commit may have succeeded. After the deadline no time is
        // left.
        match kind {
            ErrorKind::FenceLost
            | ErrorKind::DeliveryLost
            | ErrorKind::RunLost
            | ErrorKind::CommitUnknown
            | ErrorKind::PartlyCommitted
            | ErrorKind::Deadline => None,
            kind => self.budgets.get(&kind).copied(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_cap_and_never_overflow() {
        let budget = Budget::new(9);
        assert_eq!(budget.bound(0), Duration::from_millis(10));
        assert_eq!(budget.bound(3), Duration::from_millis(80));
        assert_eq!(budget.bound(u32::MAX), Duration::from_secs(1));
    }

    #[test]
    fn the_default_retries_conflicts_and_nothing_else() {
        let policy = RetryPolicy::default();
        for kind in [ErrorKind::Stale, ErrorKind::Deadlock, ErrorKind::Serialization] {
            assert_eq!(policy.budget(kind).map(|budget| budget.retries), Some(3));
        }
        for kind in [ErrorKind::Domain, ErrorKind::Unique, ErrorKind::Unavailable] {
            assert_eq!(policy.budget(kind), None);
        }
        assert_eq!(RetryPolicy::none().budget(ErrorKind::Stale), None);
    }

    #[test]
    fn what_may_have_committed_or_lost_its_lease_is_never_retried() {
        let never = [ErrorKind::CommitUnknown, ErrorKind::PartlyCommitted, ErrorKind::FenceLost];
        for kind in never {
            let policy = RetryPolicy::none().with(kind, Budget::new(5));
            assert_eq!(policy.budget(kind), None);
        }
    }
}
