//! The key of the measurement.

use std::time::Duration;

/// The key that all clients acquire.
pub const KEY: &str = "bench";
/// The maximum hold time of a lease, far longer than any measured hold.
pub const MAX_HOLD: Duration = Duration::from_secs(30);
