//! Durations as the server counts them, and its answers.

use std::time::Duration;

use ekbatan_lock::{BackendError, FailureKind};
use redis::{ErrorKind, RedisError, RedisResult, ServerErrorKind};

pub(crate) fn answered<T>(answer: RedisResult<T>) -> Result<T, BackendError> {
    answer.map_err(|error| {
        let kind = kind(&error);
        BackendError::caused("Redis", error).of_kind(kind)
    })
}

fn kind(error: &RedisError) -> FailureKind {
    match error.kind() {
        ErrorKind::Io if error.is_connection_refusal() => FailureKind::Unavailable,
        ErrorKind::Io => FailureKind::InDoubt,
        // The server starts, or has lost its master.
        ErrorKind::Server(
            ServerErrorKind::BusyLoading
            | ServerErrorKind::ClusterDown
            | ServerErrorKind::MasterDown
            | ServerErrorKind::TryAgain,
        ) => FailureKind::Unavailable,
        _ => FailureKind::Refused,
    }
}

/// Rounded up, and at least one: the key must not be free earlier than its holder expects.
pub(crate) fn milliseconds(duration: Duration) -> u64 {
    /// The longest time that the server can calculate with.
    const MAX: u64 = 1 << 52;
    let whole = u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(MAX);
    whole.clamp(1, MAX)
}

/// The remaining time, if the server knows it.
pub(crate) fn left(milliseconds: i64) -> Option<Duration> {
    u64::try_from(milliseconds).ok().map(Duration::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_at_least_a_millisecond_and_never_cut_short() {
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_micros(1_500)), 2);
        assert_eq!(milliseconds(Duration::from_secs(90)), 90_000);
        assert!(i64::try_from(milliseconds(Duration::MAX)).is_ok());
    }

    #[test]
    fn a_negative_ttl_means_no_limit() {
        assert_eq!((left(-1), left(5)), (None, Some(Duration::from_millis(5))));
    }
}
