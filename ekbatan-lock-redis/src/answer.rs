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

/// Codes of a server that refuses commands for a time: it is a replica now, lacks replicas, cannot
/// write its data to the disk, runs the script of somebody else, or has no memory left.
const REFUSES_FOR_A_TIME: [&str; 5] = ["READONLY", "NOREPLICAS", "MISCONF", "BUSY", "OOM"];

/// Whether the server refuses commands for a time. The next connection may lead to another server.
pub(crate) fn refuses_for_a_time(error: &RedisError) -> bool {
    let is_one = |word: &str| REFUSES_FOR_A_TIME.contains(&word);
    // Redis 6 reports an error within a script as `ERR`, and its code in the text: `-READONLY ..`.
    let says =
        |text: &str| text.split_whitespace().any(|word| word.strip_prefix('-').is_some_and(is_one));
    let errors = error.clone().into_server_errors();
    errors
        .iter()
        .flat_map(|errors| errors.iter())
        .any(|(_, error)| is_one(error.code()) || error.details().is_some_and(says))
}

pub(crate) fn kind(error: &RedisError) -> FailureKind {
    match error.kind() {
        _ if refuses_for_a_time(error) => FailureKind::Unavailable,
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
    use redis::{Value, parse_redis_value};

    use super::*;

    #[test]
    fn a_term_is_at_least_a_millisecond_and_never_cut_short() {
        assert_eq!(milliseconds(Duration::from_nanos(1)), 1);
        assert_eq!(milliseconds(Duration::from_micros(1_500)), 2);
        assert_eq!(milliseconds(Duration::from_secs(90)), 90_000);
        assert!(i64::try_from(milliseconds(Duration::MAX)).is_ok());
    }

    #[test]
    fn a_server_that_refuses_commands_for_a_time_may_accept_them_later() {
        for (said, kind) in [
            ("READONLY You can't write against a read only replica.", FailureKind::Unavailable),
            ("NOREPLICAS Not enough good replicas to write.", FailureKind::Unavailable),
            ("MISCONF Redis is configured to save RDB snapshots", FailureKind::Unavailable),
            ("BUSY Redis is busy running a script.", FailureKind::Unavailable),
            ("OOM command not allowed when used memory > 'maxmemory'.", FailureKind::Unavailable),
            // Redis 6, within a script.
            (
                "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: \
                 -READONLY You can't write against a read only replica.",
                FailureKind::Unavailable,
            ),
            ("ERR unknown command", FailureKind::Refused),
            ("WRONGTYPE Operation against a key", FailureKind::Refused),
        ] {
            let answer = parse_redis_value(format!("-{said}\r\n").as_bytes()).unwrap();
            let Value::ServerError(error) = answer else { panic!("{answer:?}") };
            assert_eq!(super::kind(&error.into()), kind, "{said}");
        }
    }

    #[test]
    fn a_negative_ttl_means_no_limit() {
        assert_eq!((left(-1), left(5)), (None, Some(Duration::from_millis(5))));
    }
}
