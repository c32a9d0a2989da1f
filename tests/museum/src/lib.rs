//! Known defects: for each, an edit that brings it back, and the test that catches it.
//!
//! A defect is a file `tests/museum/<room>/<name>.toml`. `scripts/museum` applies each edit to a
//! copy of the checkout and expects the test to fail there.

pub mod copy;
mod defect;
pub mod suite;
pub mod verdict;

pub use defect::{Defect, Edit, Error};
