//! Answers of the server: what is known of a request that failed, and the results of operations.

use aerospike::{BatchOperation, Error, ErrorKind, Record, ResultCode, Value};
use ekbatan_lock::{BackendError, FailureKind};

/// The server could not begin: it is overloaded, stops, has no room, or knows no master of the record.
const NO_EFFECT: [ResultCode; 6] = [
    ResultCode::PartitionUnavailable,
    ResultCode::ClusterKeyMismatch,
    ResultCode::DeviceOverload,
    ResultCode::ServerMemError,
    ResultCode::KeyBusy,
    ResultCode::FailForbidden,
];

pub(crate) fn failed(error: &Error) -> BackendError {
    let kind = kind(error);
    BackendError::new(format!("Aerospike: {error}")).of_kind(kind)
}

fn kind(error: &Error) -> FailureKind {
    // The driver wraps the answer to its last try, here the only one, in a time-out that is in doubt.
    if error.matches(&NO_EFFECT) {
        return FailureKind::Unavailable;
    }
    if error.in_doubt() {
        return FailureKind::InDoubt;
    }
    match error.kind() {
        ErrorKind::Server { rc, .. } if *rc == ResultCode::Timeout => FailureKind::InDoubt,
        // The namespace was there at the start: the client was closed, or has found no node since.
        ErrorKind::InvalidNamespace
        | ErrorKind::Connection
        | ErrorKind::ConnectionPoolEmpty
        | ErrorKind::NoMoreConnections
        | ErrorKind::MaxErrorRate
        | ErrorKind::InvalidNode
        // The client has not sent a write: otherwise the error would be in doubt. A read has no effect.
        | ErrorKind::Timeout
        | ErrorKind::Io(_)
        | ErrorKind::BadResponse => FailureKind::Unavailable,
        _ => FailureKind::Refused,
    }
}

/// Whether a server has answered, if only by an error.
pub(crate) fn is_answer(error: &Error) -> bool {
    error.server_result_code().is_some()
}

/// Whether the server has left out an operation, because its filter did not hold, or because there is
/// no record to update, or already one that was to be created.
pub(crate) fn is_left_out(error: &Error) -> bool {
    error.matches(&[
        ResultCode::FilteredOut,
        ResultCode::KeyNotFoundError,
        ResultCode::KeyExistsError,
    ])
}

/// The answer to one operation of a batch: its record, or `None` if it was left out.
pub(crate) fn row(operation: &BatchOperation) -> Result<Option<&Record>, BackendError> {
    match operation.batch_record().error() {
        Some(error) if !is_left_out(error) => Err(failed(error)),
        _ => Ok(operation.record()),
    }
}

/// The result of an operation, which is a number.
pub(crate) fn number(record: &Record, operation: usize) -> Option<i64> {
    match record.results.as_ref()?.get(operation)? {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

/// The result of an operation, which is a text.
pub(crate) fn text(record: &Record, operation: usize) -> Option<&str> {
    match record.results.as_ref()?.get(operation)? {
        Value::String(text) => Some(text),
        _ => None,
    }
}

/// The server is another one than this crate knows, which repeating does not cure.
pub(crate) fn unexpected(what: &str) -> BackendError {
    BackendError::new(format!(
        "Aerospike: an answer lacks {what}; is this an Aerospike 6.0 or newer?"
    ))
}
