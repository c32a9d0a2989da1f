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
        // What the cluster says of a record that it refuses for good. The client retries what may pass.
        KrafkaError::TransactionAbortable { .. }
        | KrafkaError::UnknownTopic { .. }
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
        // Of the code there is only its name in the message.
        KrafkaError::TransactionAbortable { message } if !is_for_ever(message) => {
            Receipt::refused_for_now(error)
        }
        _ => Receipt::refused(error),
    }
}

fn is_for_ever(message: &str) -> bool {
    FOR_EVER.iter().any(|code| message.ends_with(&format!("{code:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_refused_in_a_transaction_is_known_by_the_name_of_the_code() {
        let refused = |code| {
            let message = format!("produce to a-0 failed with {code}");
            let error = KrafkaError::transaction_abortable(message);
            assert!(is_of_record(&error));
            receipt_of_record(&error)
        };
        let is_for_ever = |receipt| matches!(receipt, Receipt::Refused { may_pass: false, .. });
        assert!(is_for_ever(refused("MessageTooLarge")));
        assert!(!is_for_ever(refused("TopicAuthorizationFailed")), "an operator may allow it");
        assert!(!is_of_record(&KrafkaError::fenced("")));
        assert!(!is_of_record(&KrafkaError::timeout("")));
    }
}
