//! Errors of calls, and what is known of a request that failed.

use ekbatan_lock::{BackendError, FailureKind};

use super::service::ANSWER;

/// Error of a call, with the server that it went to.
#[derive(Debug, Clone)]
pub(crate) enum CallError {
    /// No connection could be made.
    Unreachable { server: String, why: String },
    /// The connection broke before the server answered.
    Cut { server: String, why: String },
    /// The server did not answer in time.
    Silent { server: String },
    /// The server answered with an exception.
    Exception { server: String, class: String, text: String, final_: bool },
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

/// What an exception says of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The region is elsewhere. The request had no effect.
    Elsewhere,
    /// The server is too busy or not ready. The request had no effect.
    Later,
    /// Repeating the request does not help.
    Refused,
    /// The request may have had its effect.
    Unknown,
}

/// The exceptions, by the end of their names, that say that the region or its server is not there.
const ELSEWHERE: [&str; 10] = [
    "NotServingRegionException",
    "RegionMovedException",
    "RegionOpeningException",
    "UnknownRegionException",
    "WrongRegionException",
    "RegionOfflineException",
    "RegionInRecoveryException",
    "RegionServerStoppedException",
    "RegionServerAbortedException",
    "ServerNotRunningYetException",
];

/// The exceptions of a server that has not begun with the request.
const LATER: [&str; 8] = [
    "CallQueueTooBigException",
    "CallDroppedException",
    "ServerTooBusyException",
    "RegionTooBusyException",
    "RetryImmediatelyException",
    "RpcThrottlingException",
    "PleaseHoldException",
    "MultiActionResultTooLarge",
];

/// The exceptions that do not pass, in answers without a mark for that.
const REFUSED: [&str; 8] = [
    "DoNotRetryIOException",
    "AccessDeniedException",
    "NoSuchColumnFamilyException",
    "TableNotFoundException",
    "TableNotEnabledException",
    "FailedSanityCheckException",
    "UnsupportedOperationException",
    "NamespaceNotFoundException",
];

impl CallError {
    /// The failure of the last request.
    pub(crate) fn last(&self) -> &Self {
        match self {
            Self::AfterEffect(last) => last.last(),
            last => last,
        }
    }

    /// Whether the request may have had its effect.
    pub(crate) fn leaves_doubt(&self) -> bool {
        matches!(self, Self::Cut { .. } | Self::Silent { .. } | Self::AfterEffect(_))
            || self.meaning() == Some(Meaning::Unknown)
    }

    /// Whether the exception has this name, without its package.
    pub(crate) fn is(&self, name: &str) -> bool {
        matches!(self.last(), Self::Exception { class, .. } if simple(class) == name)
    }

    /// What an exception says; `None` without an exception.
    pub(crate) fn meaning(&self) -> Option<Meaning> {
        let Self::Exception { class, final_, .. } = self.last() else { return None };
        let is_one_of = |names: &[&str]| names.contains(&simple(class));
        Some(if is_one_of(&ELSEWHERE) {
            Meaning::Elsewhere
        } else if is_one_of(&LATER) {
            Meaning::Later
        } else if *final_ || is_one_of(&REFUSED) {
            Meaning::Refused
        } else {
            Meaning::Unknown
        })
    }

    /// Whether this is an exception that may pass.
    pub(crate) fn may_pass(&self) -> bool {
        self.meaning().is_some_and(|meaning| meaning != Meaning::Refused)
    }

    /// The error of a backend.
    pub(crate) fn of(self, effect: Effect) -> BackendError {
        let unknown = match effect {
            Effect::None => FailureKind::Unavailable,
            Effect::Possible => FailureKind::InDoubt,
        };
        let kind = match (&self, self.meaning()) {
            (Self::AfterEffect(_), _) => unknown,
            (Self::Unreachable { .. }, _) => FailureKind::Unavailable,
            (_, Some(Meaning::Elsewhere | Meaning::Later)) => FailureKind::Unavailable,
            (_, Some(Meaning::Refused)) => FailureKind::Refused,
            _ => unknown,
        };
        BackendError::new(self.text()).of_kind(kind)
    }

    fn text(&self) -> String {
        match self {
            Self::Unreachable { server, why } => format!("HBase at {server}: {why}"),
            Self::Cut { server, why } => {
                format!("HBase at {server}: the connection broke ({why})")
            }
            Self::Silent { server } => {
                format!("HBase at {server} did not answer within {ANSWER:?}")
            }
            Self::Exception { server, class, text, .. } => {
                let advice = match simple(class) {
                    "AccessDeniedException" => ADVICE_ON_ACCESS,
                    _ => "",
                };
                format!("HBase at {server}: {}{advice}", first_line(class, text))
            }
            Self::AfterEffect(last) => last.text(),
        }
    }
}

/// The error of a request after another one that may have had its effect.
pub(crate) fn in_doubt(error: BackendError) -> BackendError {
    match error.kind() {
        FailureKind::Unavailable => error.of_kind(FailureKind::InDoubt),
        _ => error,
    }
}

const ADVICE_ON_ACCESS: &str = "; give the user of the locks the permissions R, W and C on the \
    table; clusters that want Kerberos are not supported";

/// The name of a class without its package.
fn simple(class: &str) -> &str {
    class.rsplit(['.', '$']).next().unwrap_or(class)
}

/// The first line of a stack trace, which begins with the class.
fn first_line(class: &str, text: &str) -> String {
    let line = text.lines().next().unwrap_or_default().trim();
    match line.strip_prefix(class) {
        Some(rest) => format!("{}{rest}", simple(class)),
        None if line.is_empty() => simple(class).to_owned(),
        None => format!("{}: {line}", simple(class)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exception(class: &str, final_: bool) -> CallError {
        let (server, class) = ("a:1".to_owned(), class.to_owned());
        let text = format!("{class}: what it says\n\tat one.Place");
        CallError::Exception { server, class, text, final_ }
    }

    #[test]
    fn only_a_request_without_effect_is_unavailable() {
        let kind = |error: CallError, effect| error.of(effect).kind();
        for class in [
            "org.apache.hadoop.hbase.NotServingRegionException",
            "org.apache.hadoop.hbase.exceptions.RegionMovedException",
            "org.apache.hadoop.hbase.CallQueueTooBigException",
        ] {
            let error = exception(class, false);
            assert_eq!(kind(error, Effect::Possible), FailureKind::Unavailable, "{class}");
        }
        let unknown = exception("java.io.IOException", false);
        assert_eq!(kind(unknown.clone(), Effect::Possible), FailureKind::InDoubt);
        assert_eq!(kind(unknown, Effect::None), FailureKind::Unavailable);
        let (server, why) = ("a:1".to_owned(), "reset".to_owned());
        let cut = CallError::Cut { server: server.clone(), why: why.clone() };
        assert_eq!(kind(cut, Effect::Possible), FailureKind::InDoubt);
        let silent = CallError::Silent { server: server.clone() };
        assert_eq!(kind(silent, Effect::Possible), FailureKind::InDoubt);
        let unreachable = CallError::Unreachable { server, why };
        assert_eq!(kind(unreachable.clone(), Effect::Possible), FailureKind::Unavailable);
        let moved = exception("org.apache.hadoop.hbase.NotServingRegionException", false);
        for last in [unreachable, moved] {
            let resent = CallError::AfterEffect(Box::new(last.clone()));
            assert_eq!(resent.meaning(), last.meaning());
            assert_eq!(kind(resent.clone(), Effect::Possible), FailureKind::InDoubt);
            assert_eq!(kind(resent, Effect::None), FailureKind::Unavailable);
        }
    }

    #[test]
    fn what_does_not_pass_is_refused_with_its_first_line() {
        let class = "org.apache.hadoop.hbase.security.AccessDeniedException";
        for error in [exception(class, false), exception(class, true)] {
            let error = error.of(Effect::Possible);
            assert_eq!(error.kind(), FailureKind::Refused);
            let text = error.to_string();
            let begins = "HBase at a:1: AccessDeniedException: what it says; give the user";
            assert!(text.starts_with(begins), "{text}");
        }
        assert!(exception("a.b.C", true).is("C") && !exception("a.b.C", true).is("b.C"));
        assert_eq!(exception("a.b.C", true).of(Effect::Possible).kind(), FailureKind::Refused);
    }
}
