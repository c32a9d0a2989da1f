//! How a call deals with others that want the same row at the same time.
//!
//! Every strategy keeps the same promise, because the commit compares row versions: a change
//! is committed on the state that it was computed from, or not at all. Strategies differ in
//! what a conflict costs.
//!
//! From bottom to top: what callers choose ([`options`], [`leases`]), what a strategy needs of
//! a call ([`perform`], which is also the optimistic strategy), the [`pessimistic`] and the
//! coalesced strategy ([`coalesce`]), the [`conflict_tracker`] and the [`hot_rows`] of the
//! adaptive one, and the choice among them ([`strategy`]).

mod coalesce;
mod conflict_tracker;
mod decaying_count;
mod hot_rows;
mod leases;
mod options;
mod perform;
mod pessimistic;
mod strategy;

pub use conflict_tracker::{Handling, HotKey};
pub use leases::{HeldLease, LeaseError, Leases};
pub use options::{Adaptive, Coalesced, Contention, Pessimistic};
pub(super) use perform::{Perform, Performed};
pub(super) use strategy::{ChosenStrategy, Strategies};
