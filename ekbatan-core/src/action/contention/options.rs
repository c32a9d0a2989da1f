//! The strategies that callers choose from, and their options.

use std::time::Duration;

/// How a call deals with others that want the same row at the same time.
///
/// The default is [`Contention::Adaptive`], which needs no key. [`Contention::Pessimistic`] and
/// [`Contention::Coalesced`] need a [`LockKey`](crate::domain::LockKey) or several, which the
/// action derives from its parameters or the call sets. Without a key such a default of the
/// executor falls back to optimistic; a strategy that the call or the action chose fails.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Contention {
    /// Commits if no row has changed since it was read; otherwise the call is retried after a
    /// random pause. Calls that keep meeting on one row are not fair to each other.
    Optimistic,
    /// Takes the lease of each key before the first read; the leases fence the commit. All calls
    /// take the leases of several keys in the same order.
    Pessimistic(Pessimistic),
    /// Calls that wait for one key in this process are performed one after another, each on
    /// the rows that the one before it stages, and committed together. A call with several keys
    /// waits for the one on which most conflicts were met lately, otherwise for the first one.
    Coalesced(Coalesced),
    /// Starts optimistically. Commits the calls of a key together while they conflict, and
    /// under its lease while other processes conflict too. Of several keys, the hottest counts.
    ///
    /// A call without a key contends for the rows on which it meets others. After a conflict it
    /// waits in the queue of the row, and while the row is hot, later calls of the same action
    /// do so when they read it: `perform` is dropped at that read, and runs again from its
    /// beginning when it is the call's turn.
    Adaptive(Adaptive),
}

impl Default for Contention {
    fn default() -> Self {
        Self::adaptive()
    }
}

impl Contention {
    /// Optimistic. It has no options.
    pub fn optimistic() -> Self {
        Self::Optimistic
    }

    /// Pessimistic with default options.
    pub fn pessimistic() -> Self {
        Pessimistic::default().into()
    }

    /// Coalesced with default options.
    pub fn coalesced() -> Self {
        Coalesced::default().into()
    }

    /// Adaptive with default options.
    pub fn adaptive() -> Self {
        Adaptive::default().into()
    }

    /// Whether the strategy needs an executor with leases.
    pub(crate) fn takes_leases(&self) -> bool {
        match self {
            Contention::Optimistic => false,
            Contention::Pessimistic(_) => true,
            Contention::Coalesced(coalesced) => coalesced.lease.is_some(),
            Contention::Adaptive(adaptive) => adaptive.coalesced.lease.is_some(),
        }
    }
}

/// The time limits of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pessimistic {
    /// The maximum time to wait for the lease. Default 90 s.
    pub wait: Duration,
    /// The maximum time to hold the lease. Default 90 s.
    pub hold: Duration,
}

impl Default for Pessimistic {
    fn default() -> Self {
        Self { wait: Duration::from_secs(90), hold: Duration::from_secs(90) }
    }
}

impl Pessimistic {
    /// Sets the maximum time to wait.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Sets the maximum time to hold.
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }
}

/// The bounds of a group of calls that commit together. No call waits for others to come: a
/// group is committed once no call waits for the key, or once it reaches one of its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coalesced {
    /// The maximum number of calls. Default 128.
    pub members: usize,
    /// The maximum size of the values in bytes; a single call may exceed it. Default 1 MiB. A group also
    /// stays within `max-commit-bytes` of its database.
    pub bytes: usize,
    /// The maximum time from the first call to the last. Default 50 ms.
    pub time: Duration,
    /// The maximum time for which one call keeps others waiting. A call that takes longer, or
    /// that its caller does not poll, loses its turn: the next call goes on, and the late one
    /// commits by itself. Waiting for the lease does not count. Default 1 s.
    pub turn: Duration,
    /// The lease under which groups commit, so that processes take turns. Default none: then
    /// groups of several processes conflict on row versions.
    pub lease: Option<Pessimistic>,
}

impl Default for Coalesced {
    fn default() -> Self {
        Self {
            members: 128,
            bytes: 1 << 20,
            time: Duration::from_millis(50),
            turn: Duration::from_secs(1),
            lease: None,
        }
    }
}

impl Coalesced {
    /// Sets the maximum number of calls.
    #[must_use]
    pub const fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Sets the maximum size of the values in bytes.
    #[must_use]
    pub const fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the maximum time from the first call to the last.
    #[must_use]
    pub const fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// Sets the maximum time for which one call keeps others waiting.
    #[must_use]
    pub const fn turn(mut self, turn: Duration) -> Self {
        self.turn = turn;
        self
    }

    /// Commits groups under a lease, so that processes take turns instead of conflicting.
    #[must_use]
    pub const fn under_lease(mut self, lease: Pessimistic) -> Self {
        self.lease = Some(lease);
        self
    }
}

/// Starts optimistically and switches to [`Coalesced`] for keys and rows on which calls conflict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Adaptive {
    /// How the calls of a hot key are committed together. The lease is taken only while other
    /// processes conflict. If none is set, an executor with leases takes one with default options,
    /// but only for calls whose strategy was chosen: by the executor, the action or the call.
    pub coalesced: Coalesced,
}

impl Adaptive {
    /// Sets how the calls of a hot key are committed together.
    #[must_use]
    pub const fn coalesced(mut self, coalesced: Coalesced) -> Self {
        self.coalesced = coalesced;
        self
    }
}

impl From<Pessimistic> for Contention {
    fn from(options: Pessimistic) -> Self {
        Contention::Pessimistic(options)
    }
}

impl From<Coalesced> for Contention {
    fn from(options: Coalesced) -> Self {
        Contention::Coalesced(options)
    }
}

impl From<Adaptive> for Contention {
    fn from(options: Adaptive) -> Self {
        Contention::Adaptive(options)
    }
}
