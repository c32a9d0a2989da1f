//! Answers of the server: what is known of a request that failed, and the fields of a document.

use std::error::Error as _;
use std::io;

use ekbatan_lock::{BackendError, FailureKind};
use mongodb::bson::Document;
use mongodb::error::{CommandError, Error, ErrorKind, WriteFailure};

/// The member is no primary or is overloaded, or the document was just changed: the request had no
/// effect.
const NO_EFFECT: [i32; 6] = [112, 462, 10058, 10107, 13435, 13436];

/// The server did not carry the request out to the end, did not wait for the effect, or does not know
/// it. `91`, `189`, `11600` and `11602` are those of a member that stops or is no primary any more: it
/// interrupts what it has begun, which may be written already. `11601` is `killOp`. `1` is any failure
/// within the server, and with FerretDB also one of the PostgreSQL below it.
const IN_DOUBT: [i32; 13] = [1, 6, 7, 50, 64, 89, 91, 189, 262, 9001, 11600, 11601, 11602];

/// A document of that key was made at the same moment.
const DUPLICATE: i32 = 11000;

/// The document was changed at the same moment.
const WRITE_CONFLICT: i32 = 112;

const INTERNAL: i32 = 1;

const FAILED_TO_PARSE: i32 = 9;

pub(crate) fn failed(error: Error) -> BackendError {
    let kind = kind(&error);
    BackendError::caused("MongoDB", error).of_kind(kind)
}

fn kind(error: &Error) -> FailureKind {
    match &*error.kind {
        ErrorKind::ServerSelection { .. } => FailureKind::Unavailable,
        ErrorKind::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            FailureKind::Unavailable
        }
        // The client was closed or replaced before the request was sent.
        ErrorKind::Shutdown => FailureKind::Unavailable,
        // The pool may be cleared while the request is in flight.
        ErrorKind::Io(_)
        | ErrorKind::InvalidResponse { .. }
        | ErrorKind::ConnectionPoolCleared { .. } => FailureKind::InDoubt,
        ErrorKind::Write(WriteFailure::WriteConcernError(_)) => FailureKind::InDoubt,
        // It met others again and again.
        ErrorKind::Command(_) if is_collision(error) => FailureKind::Unavailable,
        ErrorKind::Command(error) => of_code(error.code),
        // The server may be unable to look at the login at present. The request was not sent.
        ErrorKind::Authentication { .. } => match cause(error).map(kind) {
            Some(FailureKind::Unavailable | FailureKind::InDoubt) => FailureKind::Unavailable,
            _ => FailureKind::Refused,
        },
        _ => FailureKind::Refused,
    }
}

/// The error of the driver that led to this one.
fn cause(error: &Error) -> Option<&Error> {
    let source = error.source()?;
    source.downcast_ref::<Box<Error>>().map(|boxed| &**boxed).or_else(|| source.downcast_ref())
}

fn of_code(code: i32) -> FailureKind {
    match code {
        code if NO_EFFECT.contains(&code) || code == DUPLICATE => FailureKind::Unavailable,
        code if IN_DOUBT.contains(&code) => FailureKind::InDoubt,
        _ => FailureKind::Refused,
    }
}

/// Whether a server has answered, if only by an error.
pub(crate) fn is_answer(error: &Error) -> bool {
    matches!(&*error.kind, ErrorKind::Command(_) | ErrorKind::Write(_))
}

/// Whether another request made the document at the same moment, so that this one had no effect.
/// FerretDB has no code of its own for that, and sometimes repeats the request by itself, without the
/// time.
pub(crate) fn is_collision(error: &Error) -> bool {
    match &*error.kind {
        ErrorKind::Command(CommandError { code, message, .. }) => match *code {
            DUPLICATE | WRITE_CONFLICT => true,
            INTERNAL => message.contains("uplicate key"),
            FAILED_TO_PARSE => message.contains("$$NOW operator cannot be used"),
            _ => false,
        },
        _ => false,
    }
}

/// Fails for a write that was refused, or that is not yet safe.
pub(crate) fn written(answer: &Document) -> Result<(), BackendError> {
    if let Ok(errors) = answer.get_array("writeErrors")
        && let Some(first) = errors.first().and_then(|error| error.as_document())
    {
        let code = first.get_i32("code").unwrap_or_default();
        let message = first.get_str("errmsg").unwrap_or("a write failed");
        return Err(BackendError::new(format!("MongoDB: {message}")).of_kind(of_code(code)));
    }
    if let Ok(error) = answer.get_document("writeConcernError") {
        let message = error.get_str("errmsg").unwrap_or("no majority has confirmed a write");
        return Err(BackendError::in_doubt(format!(
            "MongoDB: a write is not confirmed by a majority: {message}"
        )));
    }
    Ok(())
}

/// A number, whatever its type.
pub(crate) fn number(document: &Document, field: &str) -> Option<i64> {
    let value = document.get(field)?;
    #[expect(clippy::cast_possible_truncation, reason = "counts and milliseconds are whole")]
    let of_double = |number: f64| number as i64;
    value
        .as_i64()
        .or_else(|| value.as_i32().map(i64::from))
        .or_else(|| value.as_f64().map(of_double))
}

/// The server is another one than this crate knows, which repeating does not cure.
pub(crate) fn unexpected(what: &str) -> BackendError {
    BackendError::new(format!(
        "MongoDB: an answer lacks {what}; is this a MongoDB 4.2 or newer, or a FerretDB 2?"
    ))
}

#[cfg(test)]
mod tests {
    use mongodb::bson::doc;

    use super::*;

    #[test]
    fn a_write_that_is_not_confirmed_is_in_doubt() {
        assert!(written(&doc! { "n": 1, "ok": 1.0 }).is_ok());
        let unconfirmed =
            doc! { "n": 1, "writeConcernError": { "code": 64, "errmsg": "timed out" } };
        let error = written(&unconfirmed).unwrap_err();
        assert_eq!(error.kind(), FailureKind::InDoubt);
        assert!(error.to_string().contains("timed out"), "{error}");
        let refused = doc! { "n": 0, "writeErrors": [{ "index": 0, "code": 13, "errmsg": "no" }] };
        assert_eq!(written(&refused).unwrap_err().kind(), FailureKind::Refused);
        let not_primary = doc! { "writeErrors": [{ "code": 10107, "errmsg": "not primary" }] };
        assert_eq!(written(&not_primary).unwrap_err().kind(), FailureKind::Unavailable);
    }

    /// The error for which the server answers with this code.
    fn command(code: i32) -> Error {
        let answer = doc! { "code": code, "codeName": "Name", "errmsg": "a test" };
        let error: CommandError = mongodb::bson::deserialize_from_document(answer).unwrap();
        ErrorKind::Command(error).into()
    }

    #[test]
    fn a_request_that_the_server_interrupted_is_in_doubt() {
        let kinds = |codes: &[i32]| -> Vec<FailureKind> {
            codes.iter().map(|code| kind(&command(*code))).collect()
        };
        let interrupted = [91, 189, 11600, 11601, 11602];
        assert_eq!(kinds(&interrupted), [FailureKind::InDoubt; 5]);
        let not_begun = [112, 462, 10107, 13435, 13436, 11000];
        assert_eq!(kinds(&not_begun), [FailureKind::Unavailable; 6]);
        assert_eq!(kinds(&[2, 13]), [FailureKind::Refused; 2]);
        for code in interrupted {
            let answer = doc! { "writeErrors": [{ "code": code, "errmsg": "interrupted" }] };
            assert_eq!(written(&answer).unwrap_err().kind(), FailureKind::InDoubt, "{code}");
        }
    }

    #[test]
    fn a_broken_connection_leaves_a_request_in_doubt() {
        let io = |kind: io::ErrorKind| Error::from(io::Error::from(kind));
        assert_eq!(kind(&io(io::ErrorKind::ConnectionReset)), FailureKind::InDoubt);
        assert_eq!(kind(&io(io::ErrorKind::UnexpectedEof)), FailureKind::InDoubt);
        assert_eq!(kind(&io(io::ErrorKind::ConnectionRefused)), FailureKind::Unavailable);
        let closed = Error::from(ErrorKind::Shutdown);
        assert_eq!(kind(&closed), FailureKind::Unavailable);
        assert!(!is_answer(&closed) && is_answer(&command(13)));
    }

    #[test]
    fn a_number_may_have_any_type() {
        let document = doc! { "a": 1, "b": 2_i64, "c": 3.0, "d": "x" };
        let numbers = ["a", "b", "c", "d", "e"].map(|field| number(&document, field));
        assert_eq!(numbers, [Some(1), Some(2), Some(3), None, None]);
    }
}
