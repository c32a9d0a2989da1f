//! The strategies, as callers choose them.

use std::time::Duration;

/// How a call deals with others that want the same row at the same time.
///
/// All but [`Contention::Optimistic`] go by a [`LockKey`](crate::domain::LockKey), which
/// the action derives from its parameters or the call names. Where the executor's own default
/// finds no key, the call runs optimistically; a strategy that the call or the action chose
/// is then an error.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Contention {
    /// Reads, decides, commits if nothing has changed meanwhile, and tries again otherwise.
    #[default]
    Optimistic,
    /// Takes the key's lease before it reads, and commits by it.
    Pessimistic(Pessimistic),
    /// Calls that wait for one key in this process are performed one after another, each on
    /// what the one before it will leave, and committed together.
    Coalesced(Coalesced),
    /// Begins optimistically, commits the calls of a key together once they are seen to conflict,
    /// under its lease if other processes conflict, and goes back when it cools.
    Adaptive(Adaptive),
}

impl Contention {
    /// Under the key's lease, with every default.
    pub fn pessimistic() -> Self {
        Pessimistic::default().into()
    }

    /// Committed together, with every default.
    pub fn coalesced() -> Self {
        Coalesced::default().into()
    }

    /// By what is seen, with every default.
    pub fn adaptive() -> Self {
        Adaptive::default().into()
    }

    /// Whether it takes leases, which the executor must then have.
    pub(crate) fn takes_leases(&self) -> bool {
        match self {
            Contention::Optimistic => false,
            Contention::Pessimistic(_) => true,
            Contention::Coalesced(coalesced) => coalesced.lease.is_some(),
            Contention::Adaptive(adaptive) => adaptive.coalesced.lease.is_some(),
        }
    }
}

/// How long a lease is waited for and held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pessimistic {
    /// How long to wait for the lease at most. Default 90 s.
    pub wait: Duration,
    /// How long to hold it at most. Default 90 s.
    pub hold: Duration,
}

impl Default for Pessimistic {
    fn default() -> Self {
        Self { wait: Duration::from_secs(90), hold: Duration::from_secs(90) }
    }
}

impl Pessimistic {
    /// Waits so long at most.
    #[must_use]
    pub const fn wait(mut self, wait: Duration) -> Self {
        self.wait = wait;
        self
    }

    /// Holds so long at most.
    #[must_use]
    pub const fn hold(mut self, hold: Duration) -> Self {
        self.hold = hold;
        self
    }
}

/// The bounds of a group of calls that commit together. No call waits for company: a group
/// is committed once nobody is in line, or once it has reached one of its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Coalesced {
    /// How many calls at most. Default 128.
    pub members: usize,
    /// How many bytes of values at most, beyond those of one call. Default 1 MiB.
    pub bytes: usize,
    /// How long the first call waits for the last at most. Default 50 ms.
    pub time: Duration,
    /// The lease under which groups commit, so that processes take turns. Default none:
    /// versions decide.
    pub lease: Option<Pessimistic>,
}

impl Default for Coalesced {
    fn default() -> Self {
        Self { members: 128, bytes: 1 << 20, time: Duration::from_millis(50), lease: None }
    }
}

impl Coalesced {
    /// So many calls at most.
    #[must_use]
    pub const fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// So many bytes of values at most.
    #[must_use]
    pub const fn bytes(mut self, bytes: usize) -> Self {
        self.bytes = bytes;
        self
    }

    /// So long at most.
    #[must_use]
    pub const fn time(mut self, time: Duration) -> Self {
        self.time = time;
        self
    }

    /// Under a lease, so that processes take turns instead of conflicting.
    #[must_use]
    pub const fn under_lease(mut self, lease: Pessimistic) -> Self {
        self.lease = Some(lease);
        self
    }
}

/// Begins optimistically and goes over to [`Coalesced`] for keys on which conflicts are seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Adaptive {
    /// How a hot key's calls are committed together. The lease is taken only while other
    /// processes are seen to conflict; where none is named, an executor that has leases takes
    /// one with every default.
    pub coalesced: Coalesced,
}

impl Adaptive {
    /// How a hot key's calls are committed together.
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
