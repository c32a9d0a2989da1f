//! What a call does about others that want the same row at the same time.
//!
//! Every strategy keeps the same promise, for versions decide in the end: a change is made
//! from what it was read from, or not at all. Strategies differ in what a conflict costs.

mod key;
mod leases;
mod options;
mod strategy;

pub use key::{ContentionKey, ContentionPart};
pub use leases::{HeldLease, LeaseError, Leases};
pub use options::{Adaptive, Coalesced, Contention, Pessimistic};
pub(super) use strategy::Strategies;
