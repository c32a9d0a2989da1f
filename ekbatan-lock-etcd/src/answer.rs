//! Durations as the server counts them, and what is known of a request that failed.

use std::error::Error;
use std::time::Duration;

use ekbatan_lock::{BackendError, FailureKind};
use tonic::{Code, ConnectError, Status};

use crate::address::ANSWER;

/// What the server says of a lease that it does not know.
const NO_LEASE: &str = "lease not found";

/// Error of a call, with the member that it went to.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The member did not answer in time.
    Silent(String),
    /// The member answered with an error, or could not be reached.
    Status(String, Status),
    /// The login of this user failed.
    Login(String, String, Status),
    /// The request failed like this after it may have had its effect: it was sent before, and its
    /// answer was lost.
    AfterEffect(Box<CallError>),
}

/// What a request may have done if it failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing that matters to locks.
    None,
    /// It may have had its effect.
    Possible,
}

impl CallError {
    /// Whether the server does not know the lease.
    pub(crate) fn is_no_lease(&self) -> bool {
        self.says(NO_LEASE)
    }

    /// Whether there is a lease of this number already.
    pub(crate) fn is_known_lease(&self) -> bool {
        self.says("lease already exists")
    }

    /// Whether the server's last answer contains these words.
    fn says(&self, words: &str) -> bool {
        match self {
            Self::Status(_, status) => status.message().contains(words),
            Self::AfterEffect(last) => last.says(words),
            Self::Silent(_) | Self::Login(..) => false,
        }
    }

    /// The error of a backend.
    pub(crate) fn of(self, effect: Effect) -> BackendError {
        BackendError::new(self.text()).of_kind(self.kind(effect))
    }

    fn text(&self) -> String {
        match self {
            Self::Silent(member) => format!("etcd at {member} did not answer within {ANSWER:?}"),
            Self::Status(member, status) => {
                format!("etcd at {member}: {}{}", text(status), advice(status))
            }
            Self::Login(member, user, status) => {
                format!("etcd at {member}, login of the user `{user}`: {}", text(status))
            }
            Self::AfterEffect(last) => last.text(),
        }
    }

    fn kind(&self, effect: Effect) -> FailureKind {
        let unknown = match effect {
            Effect::None => FailureKind::Unavailable,
            Effect::Possible => FailureKind::InDoubt,
        };
        let (status, unknown) = match self {
            Self::Silent(_) => return unknown,
            Self::Status(_, status) => (status, unknown),
            Self::Login(_, _, status) => (status, FailureKind::Unavailable),
            Self::AfterEffect(last) => {
                return match last.kind(effect) {
                    FailureKind::Unavailable => unknown,
                    kind => kind,
                };
            }
        };
        if is_cut(status) {
            return unknown;
        }
        let says = |words: &str| status.message().contains(words);
        match status.code() {
            _ if is_unreachable(status) => FailureKind::Unavailable,
            // The lease of a try ended before the try arrived.
            Code::NotFound => FailureKind::Unavailable,
            Code::ResourceExhausted if says("too many requests") => FailureKind::Unavailable,
            Code::Unavailable if says("no leader") => FailureKind::Unavailable,
            Code::Unavailable
            | Code::DeadlineExceeded
            | Code::Cancelled
            | Code::Aborted
            | Code::Internal
            | Code::Unknown => unknown,
            _ => FailureKind::Refused,
        }
    }
}

/// Whether the server did not know the lease of a request.
pub(crate) fn is_no_lease(error: &BackendError) -> bool {
    error.to_string().contains(NO_LEASE)
}

/// Whether no server has received the request.
pub(crate) fn is_unreachable(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if error.is::<ConnectError>() {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Whether the connection broke before the server answered.
pub(crate) fn is_cut(status: &Status) -> bool {
    is_unanswered(status) && !is_unreachable(status)
}

/// Whether there was no connection, or none that lasted until the server answered.
pub(crate) fn is_unanswered(status: &Status) -> bool {
    status.source().is_some()
}

/// The message of the server, and the causes that are not a part of it.
fn text(status: &Status) -> String {
    let mut text = status.message().to_owned();
    let mut cause = status.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    text
}

/// What to do about an error that repeating does not cure.
fn advice(status: &Status) -> &'static str {
    let says = |words: &str| status.message().contains(words);
    if says("user name is empty") {
        "; the cluster wants a login: give `username` and `password`"
    } else if status.code() == Code::PermissionDenied {
        "; give the user's role the permission to read and write all keys that begin with the \
         namespace of the locks"
    } else if says("database space exceeded") {
        "; the cluster takes no writes: compact and defragment it, then `etcdctl alarm disarm`"
    } else {
        ""
    }
}

/// Whole seconds, rounded up, and at least one: a key must not be free earlier than its holder
/// expects. The server has a least term of its own, by default 2 s.
pub(crate) fn seconds(duration: Duration) -> i64 {
    /// About 31 years, less than the longest time that the server accepts.
    const MAX: u64 = 1_000_000_000;
    let whole = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    i64::try_from(whole.clamp(1, MAX)).unwrap_or(1)
}

/// The remaining time of a lease. The server counts whole seconds and leaves the rest out.
pub(crate) fn left(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_is_never_cut_short_and_never_too_long_for_the_server() {
        assert_eq!(seconds(Duration::from_nanos(1)), 1);
        assert_eq!(seconds(Duration::from_millis(1_001)), 2);
        assert_eq!(seconds(Duration::from_secs(90)), 90);
        assert_eq!(seconds(Duration::MAX), 1_000_000_000);
        assert_eq!((left(-1), left(5)), (Duration::ZERO, Duration::from_secs(5)));
    }

    #[test]
    fn only_a_request_without_effect_is_unavailable() {
        let kind = |code, message: &str, effect| {
            CallError::Status("a:1".to_owned(), Status::new(code, message)).of(effect).kind()
        };
        for (code, message) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unknown, "transport error"),
        ] {
            assert_eq!(kind(code, message, Effect::Possible), FailureKind::InDoubt);
            assert_eq!(kind(code, message, Effect::None), FailureKind::Unavailable);
        }
        let refused = [
            (Code::PermissionDenied, "etcdserver: permission denied"),
            (Code::InvalidArgument, "etcdserver: user name is empty"),
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
        ];
        for (code, message) in refused {
            assert_eq!(kind(code, message, Effect::Possible), FailureKind::Refused);
            let status = Status::new(code, message);
            let error = CallError::Status("a:1".to_owned(), status).of(Effect::None).to_string();
            assert!(error.starts_with("etcd at a:1: ") && error.contains("; "), "{error}");
        }
        let none = kind(Code::Unavailable, "etcdserver: no leader", Effect::Possible);
        assert_eq!(none, FailureKind::Unavailable);
        assert_eq!(
            CallError::Silent(String::new()).of(Effect::Possible).kind(),
            FailureKind::InDoubt
        );
    }

    #[test]
    fn a_request_that_was_sent_twice_is_in_doubt_unless_it_is_refused() {
        let again = |code, message: &str| {
            let last = CallError::Status("a:1".to_owned(), Status::new(code, message));
            CallError::AfterEffect(Box::new(last))
        };
        let no_leader = || again(Code::Unavailable, "etcdserver: no leader");
        assert_eq!(no_leader().of(Effect::Possible).kind(), FailureKind::InDoubt);
        assert_eq!(no_leader().of(Effect::None).kind(), FailureKind::Unavailable);
        assert!(no_leader().of(Effect::None).to_string().ends_with("a:1: etcdserver: no leader"));
        let refused = again(Code::PermissionDenied, "etcdserver: permission denied");
        assert_eq!(refused.of(Effect::Possible).kind(), FailureKind::Refused);
        assert!(again(Code::NotFound, "etcdserver: requested lease not found").is_no_lease());
    }
}
