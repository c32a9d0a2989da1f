//! The strategies that are compared.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A way to make a deposit under contention.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// ekbatan: neither a strategy nor a key is set.
    Default,
    /// ekbatan: read, commit if the row is unchanged, otherwise retry.
    Optimistic,
    /// ekbatan: hold a lease on the wallet, see --lock.
    Pessimistic,
    /// ekbatan: commit deposits that wait for one wallet in a process together.
    Coalesced,
    /// ekbatan: the same, and processes take turns with a lease.
    CoalescedLease,
    /// ekbatan: start optimistically, switch to coalescing after conflicts.
    Adaptive,
    /// By hand: BEGIN, SELECT .. FOR UPDATE, UPDATE, INSERT, COMMIT.
    SqlxForUpdate,
    /// By hand: SELECT, BEGIN, UPDATE .. WHERE version = .., INSERT, COMMIT; retry if
    /// stale.
    SqlxVersion,
    /// By hand: UPDATE .. SET balance = balance + x and the INSERT. A lower bound: it
    /// reads nothing, so it cannot decide anything.
    SqlxBlind,
    /// SeaORM: a transaction, find with `lock_exclusive`, update, insert.
    SeaOrm,
}

/// Whether a strategy is ekbatan's or an alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ekbatan,
    Peer,
}

impl Strategy {
    /// The strategies that are compared by default.
    pub fn usual(processes: u32) -> Vec<Self> {
        let several = |strategy: &Self| *strategy != Self::CoalescedLease || processes > 1;
        Self::value_variants().iter().copied().filter(several).collect()
    }

    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Optimistic => "optimistic",
            Self::Pessimistic => "pessimistic",
            Self::Coalesced => "coalesced",
            Self::CoalescedLease => "coalesced-lease",
            Self::Adaptive => "adaptive",
            Self::SqlxForUpdate => "sqlx-for-update",
            Self::SqlxVersion => "sqlx-version",
            Self::SqlxBlind => "sqlx-blind",
            Self::SeaOrm => "sea-orm",
        }
    }

    pub const fn family(self) -> Family {
        match self {
            Self::Default
            | Self::Optimistic
            | Self::Pessimistic
            | Self::Coalesced
            | Self::CoalescedLease
            | Self::Adaptive => Family::Ekbatan,
            Self::SqlxForUpdate | Self::SqlxVersion | Self::SqlxBlind | Self::SeaOrm => {
                Family::Peer
            }
        }
    }

    /// Whether the strategy needs locks.
    pub const fn takes_leases(self) -> bool {
        matches!(self, Self::Pessimistic | Self::CoalescedLease)
    }

    /// Whether the strategy takes leases if several processes share the tasks.
    pub const fn takes_leases_between_processes(self) -> bool {
        self.takes_leases() || matches!(self, Self::Adaptive)
    }
}
