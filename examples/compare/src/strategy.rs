//! The names of what is compared.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// One way to make a deposit while others do.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, ValueEnum, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// ekbatan: reads, commits if nothing has changed meanwhile, else tries again.
    Optimistic,
    /// ekbatan: under a lease on the wallet, see --lock.
    Pessimistic,
    /// ekbatan: deposits that wait for one wallet in a process are committed together.
    Coalesced,
    /// ekbatan: the same, and processes take turns by a lease.
    CoalescedLease,
    /// ekbatan: begins optimistically and goes over to coalescing where it conflicts.
    Adaptive,
    /// By hand: BEGIN, SELECT .. FOR UPDATE, UPDATE, INSERT, COMMIT.
    SqlxForUpdate,
    /// By hand: SELECT, BEGIN, UPDATE .. WHERE version = .., INSERT, COMMIT; again if stale.
    SqlxVersion,
    /// By hand: UPDATE .. SET balance = balance + x and the INSERT. The floor: nothing is read,
    /// so nothing can be decided.
    SqlxBlind,
    /// SeaORM: a transaction, find with `lock_exclusive`, update, insert.
    SeaOrm,
}

/// How the framework is asked for a strategy, and what the alternatives are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    Ekbatan,
    Peer,
}

impl Strategy {
    /// What is compared unless one says otherwise.
    pub fn usual(processes: u32) -> Vec<Self> {
        let several = |strategy: &Self| *strategy != Self::CoalescedLease || processes > 1;
        Self::value_variants().iter().copied().filter(several).collect()
    }

    /// As it is written on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
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
            Self::Optimistic
            | Self::Pessimistic
            | Self::Coalesced
            | Self::CoalescedLease
            | Self::Adaptive => Family::Ekbatan,
            Self::SqlxForUpdate | Self::SqlxVersion | Self::SqlxBlind | Self::SeaOrm => {
                Family::Peer
            }
        }
    }

    /// Whether it needs locks.
    pub const fn takes_leases(self) -> bool {
        matches!(self, Self::Pessimistic | Self::CoalescedLease)
    }
}
