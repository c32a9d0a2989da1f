//! The bytes of calls and answers.

use prost::Message;

use super::error::CallError;
use crate::messages::rpc::{
    ConnectionHeader, ExceptionResponse, RequestHeader, ResponseHeader, UserInformation,
};

/// The first bytes of a connection: the protocol, its version, and that the user is only named.
const PREAMBLE: [u8; 6] = [b'H', b'B', b'a', b's', 0, 0x50];

/// A longer answer is no answer of HBase.
pub(super) const LONGEST: u32 = 64 << 20;

/// What a client sends first.
pub(super) fn greeting(user: &str, service: &str) -> Vec<u8> {
    let header = ConnectionHeader {
        user_info: Some(UserInformation { effective_user: user.to_owned() }),
        service_name: service.to_owned(),
    };
    let mut bytes = PREAMBLE.to_vec();
    bytes.extend(length(header.encoded_len()));
    bytes.extend(header.encode_to_vec());
    bytes
}

/// A call.
pub(super) fn call(call_id: u32, method: &str, timeout: u32, request: &impl Message) -> Vec<u8> {
    let header =
        RequestHeader { call_id, method_name: method.to_owned(), request_param: true, timeout };
    let mut bytes = vec![0; 4];
    bytes.extend(header.encode_length_delimited_to_vec());
    bytes.extend(request.encode_length_delimited_to_vec());
    let whole = length(bytes.len() - 4);
    bytes[..4].copy_from_slice(&whole);
    bytes
}

fn length(bytes: usize) -> [u8; 4] {
    // Requests are far shorter than this.
    u32::try_from(bytes).unwrap_or(u32::MAX).to_be_bytes()
}

/// An answer: the number of its call, and its message or its exception.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) call_id: u32,
    pub(super) message: Result<Vec<u8>, ExceptionResponse>,
}

/// Reads an answer. Fails with a reason.
pub(super) fn answer(mut bytes: &[u8]) -> Result<Answer, String> {
    let header = ResponseHeader::decode_length_delimited(&mut bytes);
    let header = header.map_err(|error| format!("the answer has no header: {error}"))?;
    let message = match header.exception {
        Some(exception) => Err(exception),
        None => Ok(bytes.to_vec()),
    };
    Ok(Answer { call_id: header.call_id.unwrap_or_default(), message })
}

/// The message of an answer.
pub(super) fn message<A: Message + Default>(bytes: &[u8]) -> Result<A, String> {
    // An empty message may be left out.
    if bytes.is_empty() {
        return Ok(A::default());
    }
    A::decode_length_delimited(bytes).map_err(|error| format!("the answer is unreadable: {error}"))
}

/// The error of an exception.
pub(super) fn exception(server: &str, exception: &ExceptionResponse) -> CallError {
    CallError::Exception {
        server: server.to_owned(),
        class: exception.exception_class_name.clone().unwrap_or_default(),
        text: exception.stack_trace.clone().unwrap_or_default(),
        final_: exception.do_not_retry.unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::rpc::{GetActiveMasterResponse, NoParameters, ServerName};

    #[test]
    fn a_call_has_its_length_first() {
        let bytes = call(7, "Get", 5_000, &NoParameters {});
        let length = u32::from_be_bytes(bytes[..4].try_into().unwrap());
        assert_eq!(length as usize, bytes.len() - 4);
        let header = RequestHeader::decode_length_delimited(&bytes[4..]).unwrap();
        assert_eq!((header.call_id, header.timeout), (7, 5_000));
        assert!(greeting("u", "s").starts_with(b"HBas\0\x50\0\0\0"));
    }

    #[test]
    fn an_answer_is_a_message_or_an_exception() {
        let master = ServerName { host_name: "h".to_owned(), port: Some(1), start_code: None };
        let sent = GetActiveMasterResponse { server_name: Some(master) };
        let mut bytes =
            ResponseHeader { call_id: Some(3), exception: None }.encode_length_delimited_to_vec();
        bytes.extend(sent.encode_length_delimited_to_vec());
        let read = answer(&bytes).unwrap();
        assert_eq!(read.call_id, 3);
        assert_eq!(message::<GetActiveMasterResponse>(&read.message.unwrap()).unwrap(), sent);

        let failed = ExceptionResponse {
            exception_class_name: Some("a.b.C".to_owned()),
            stack_trace: None,
            do_not_retry: Some(true),
        };
        let header = ResponseHeader { call_id: Some(u32::MAX), exception: Some(failed) };
        let read = answer(&header.encode_length_delimited_to_vec()).unwrap();
        assert_eq!(read.call_id, u32::MAX);
        assert!(exception("s", &read.message.unwrap_err()).is("C"));
    }

    #[test]
    fn bytes_that_are_no_answer_are_an_error() {
        assert!(answer(b"HTTP/1.1 400").is_err());
        assert!(message::<GetActiveMasterResponse>(&[200, 1, 1]).is_err());
        assert_eq!(message::<GetActiveMasterResponse>(&[]), Ok(Default::default()));
    }
}
