//! What the answers of the server mean.

use std::error::Error;

use async_nats::jetstream;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::context::{PublishError, PublishErrorKind};
use ekbatan_relay::{OutgoingMessage, Receipt};

/// The server takes nothing at present: it is full, or has no leader.
const NOTHING_TAKEN: [ErrorCode; 9] = [
    ErrorCode::STREAM_STORE_FAILED,
    ErrorCode::STORAGE_RESOURCES_EXCEEDED,
    ErrorCode::MEMORY_RESOURCES_EXCEEDED,
    ErrorCode::ACCOUNT_RESOURCES_EXCEEDED,
    ErrorCode::INSUFFICIENT_RESOURCES,
    ErrorCode::CLUSTER_NOT_AVAILABLE,
    ErrorCode::JETSTREAM_NOT_ENABLED,
    ErrorCode::JETSTREAM_NOT_ENABLED_FOR_ACCOUNT,
    ErrorCode::STREAM_MAX_STREAM_BYTES_EXCEEDED,
];

/// The message itself is not acceptable.
const NEVER_TAKEN: [ErrorCode; 2] =
    [ErrorCode::STREAM_MESSAGE_EXCEEDS_MAXIMUM, ErrorCode::STREAM_HEADER_EXCEEDS_MAXIMUM];

/// What became of a message that was not acknowledged.
pub(crate) enum Answer {
    Is(Receipt),
    /// No stream took it, or the one that does has no leader at present: the stream must be looked at.
    NoStream,
}

pub(crate) fn of_error(error: &PublishError, message: &OutgoingMessage, most: usize) -> Answer {
    let why = shown(error);
    Answer::Is(match error.kind() {
        PublishErrorKind::StreamNotFound => return Answer::NoStream,
        PublishErrorKind::MaxPayloadExceeded => Receipt::refused(format!(
            "the message has about {} bytes, and the server takes {most}",
            message.size()
        )),
        PublishErrorKind::TimedOut
        | PublishErrorKind::BrokenPipe
        | PublishErrorKind::MaxAckPending => Receipt::unavailable(why),
        _ => match code(error) {
            // With a limit for each subject, only the subject is full.
            Some(ErrorCode::STREAM_STORE_FAILED) if why.contains("per subject") => {
                Receipt::refused_for_now(why)
            }
            Some(code) if NOTHING_TAKEN.contains(&code) => Receipt::unavailable(why),
            Some(code) if NEVER_TAKEN.contains(&code) => Receipt::refused(why),
            Some(_) => Receipt::refused_for_now(why),
            None => Receipt::unavailable(why),
        },
    })
}

/// Why a subject cannot be sent to.
pub(crate) fn fault_of_subject(subject: &str) -> Option<String> {
    let is_wrong = subject.split('.').any(str::is_empty)
        || subject.contains(|c: char| c.is_whitespace() || matches!(c, '*' | '>'));
    is_wrong.then(|| {
        format!("`{subject}` is no subject of NATS: use words without spaces, `*` and `>`, with single dots between them")
    })
}

/// Whether one of these subjects, with their wildcards, stands for a subject.
pub(crate) fn has_subject(subjects: &[String], subject: &str) -> bool {
    subjects.iter().any(|pattern| stands_for(pattern, subject))
}

fn stands_for(pattern: &str, subject: &str) -> bool {
    let mut words = subject.split('.');
    for wanted in pattern.split('.') {
        match (wanted, words.next()) {
            (">", Some(_)) => return true,
            (wanted, Some(word)) if wanted == "*" || wanted == word => {}
            _ => return false,
        }
    }
    words.next().is_none()
}

fn code(error: &PublishError) -> Option<ErrorCode> {
    let source = Error::source(error)?;
    source.downcast_ref::<jetstream::Error>().map(jetstream::Error::error_code)
}

fn shown(error: &PublishError) -> String {
    match Error::source(error) {
        Some(source) if !error.to_string().contains(&source.to_string()) => {
            format!("{error}: {source}")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_subject_is_named() {
        for subject in ["", "a..b", ".a", "a.", "a b", "a.*", "a.>"] {
            assert!(fault_of_subject(subject).is_some(), "{subject}");
        }
        assert!(fault_of_subject("ekbatan.com.example.wallet.model.Wallet").is_none());
    }

    /// Otherwise a stream without a leader for a moment would count as one that does not take the subject.
    #[test]
    fn the_subjects_of_a_stream_stand_for_others_by_their_wildcards() {
        let has = |pattern: &str, subject| has_subject(&["a.b".into(), pattern.into()], subject);
        for pattern in ["wallets.EU.opened", "wallets.*.opened", "wallets.>", "*.*.*", ">"] {
            assert!(has(pattern, "wallets.EU.opened"), "{pattern}");
        }
        for pattern in ["wallets.EU", "wallets.*", "wallets.EU.opened.>", "orders.>", "*.*.*.*"] {
            assert!(!has(pattern, "wallets.EU.opened"), "{pattern}");
        }
    }
}
