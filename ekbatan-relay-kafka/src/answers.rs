//! What the errors of the cluster mean.

use ekbatan_relay::Receipt;
use krafka::KrafkaError;
use krafka::error::ErrorCode;

/// Errors that one of the records of a transaction has caused.
const OF_RECORD: [ErrorCode; 8] = [
    ErrorCode::MessageTooLarge,
    ErrorCode::RecordListTooLarge,
    ErrorCode::InvalidRecord,
    ErrorCode::InvalidTimestamp,
    ErrorCode::InvalidTopic,
    ErrorCode::UnknownTopicOrPartition,
    ErrorCode::TopicAuthorizationFailed,
    ErrorCode::PolicyViolation,
];

/// Those of them that stay, whatever operators do to the topic.
const FOR_EVER: [ErrorCode; 5] = [
    ErrorCode::MessageTooLarge,
    ErrorCode::RecordListTooLarge,
    ErrorCode::InvalidRecord,
    ErrorCode::InvalidTimestamp,
    ErrorCode::InvalidTopic,
];

/// Whether a record is the cause, and not the cluster.
pub(crate) fn is_of_record(error: &KrafkaError) -> bool {
    match error {
        KrafkaError::Broker { code, .. } => OF_RECORD.contains(code),
        // The client also says this of what only the cluster is the cause of, such as a log that has
        // lost an earlier batch.
        KrafkaError::TransactionAbortable { message } => names_one_of(&OF_RECORD, message),
        KrafkaError::UnknownTopic { .. }
        | KrafkaError::Config { .. }
        | KrafkaError::Serialization { .. } => true,
        _ => false,
    }
}

/// Whether the topic of a record is missing.
pub(crate) fn is_missing_topic(error: &KrafkaError) -> bool {
    matches!(
        error,
        KrafkaError::UnknownTopic { .. }
            | KrafkaError::Broker { code: ErrorCode::UnknownTopicOrPartition, .. }
    )
}

/// The receipt of a record that was the only one of its transaction.
pub(crate) fn receipt_of_record(error: &KrafkaError) -> Receipt {
    match error {
        KrafkaError::Broker { code, .. } if !FOR_EVER.contains(code) => {
            Receipt::refused_for_now(error)
        }
        KrafkaError::UnknownTopic { .. } => Receipt::refused_for_now(error),
        KrafkaError::TransactionAbortable { message } if !names_one_of(&FOR_EVER, message) => {
            Receipt::refused_for_now(error)
        }
        _ => Receipt::refused(error),
    }
}

/// Whether an error of a transaction has one of these codes. It has only the name, in its message.
fn names_one_of(codes: &[ErrorCode], message: &str) -> bool {
    codes.iter().any(|code| message.ends_with(&format!(" {code:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_refused_in_a_transaction_is_known_by_the_name_of_the_code() {
        let failed = |code: ErrorCode| {
            KrafkaError::transaction_abortable(format!("produce to a-0 failed with {code:?}"))
        };
        let is_for_ever = |code| {
            let error = failed(code);
            assert!(is_of_record(&error), "{error}");
            matches!(receipt_of_record(&error), Receipt::Refused { may_pass: false, .. })
        };
        assert!(is_for_ever(ErrorCode::MessageTooLarge));
        assert!(!is_for_ever(ErrorCode::TopicAuthorizationFailed), "an operator may allow it");
        for of_cluster in [
            ErrorCode::OutOfOrderSequenceNumber,
            ErrorCode::UnknownProducerId,
            ErrorCode::InvalidProducerEpoch,
            ErrorCode::TransactionAbortable,
        ] {
            assert!(!is_of_record(&failed(of_cluster)), "{of_cluster:?}");
        }
        assert!(!is_of_record(&KrafkaError::fenced("")));
        assert!(!is_of_record(&KrafkaError::timeout("")));
    }
}
