//! What a call does about others that want the same row at the same time.
//!
//! Every strategy keeps the same promise, for versions decide in the end: a change is made
//! from what it was read from, or not at all. Strategies differ in what a conflict costs.
//!
//! Coalesced calls stand in a [`line`] per key. Whoever has the [`turn`] runs on what the
//! [`group`] so far will leave (the [`overlay`]), joins it and hands the turn on; a
//! [`group_commit`] commits it.

mod coalesced;
mod group;
mod group_commit;
mod heat;
mod leases;
mod line;
mod options;
mod overlay;
mod strategy;
mod turn;

pub use heat::{Handling, HotKey};
pub use leases::{HeldLease, LeaseError, Leases};
pub use options::{Adaptive, Coalesced, Contention, Pessimistic};
pub(super) use strategy::{Strategies, Waited};
use turn::Turn;
