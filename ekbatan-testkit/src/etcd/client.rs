//! Requests over HTTP: those that check whether a server is ready, and those of tests.

use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The port of a URL without a port.
pub(super) const DEFAULT_PORT: u16 = 2379;

/// The data folder of the server at `port` on this machine, if it is ready for all
/// requests.
pub(super) async fn data_folder(port: u16) -> Option<PathBuf> {
    ask(port).await.ok().flatten()
}

async fn ask(port: u16) -> io::Result<Option<PathBuf>> {
    let health = http(port, "GET /health", "").await?;
    if !health.contains(r#""health":"true""#) {
        return Ok(None);
    }
    // The only member has its folder as its name.
    let members = http(port, "POST /v3/cluster/member/list", "{}").await?;
    let name = members.split_once(r#""name":""#).and_then(|(_, rest)| rest.split_once('"'));
    Ok(name.map(|(name, _)| PathBuf::from(name)))
}

/// The range of all keys that begin like this.
pub(super) fn range(prefix: &str) -> String {
    let mut end = prefix.as_bytes().to_vec();
    match end.last_mut() {
        // The last byte of a text is never 255.
        Some(last) => *last += 1,
        None => end.push(0),
    }
    let first = if prefix.is_empty() { vec![0] } else { prefix.as_bytes().to_vec() };
    format!(r#"{{"key":"{}","range_end":"{}"}}"#, base64(&first), base64(&end))
}

pub(super) fn put(key: &str, value: &str) -> String {
    format!(r#"{{"key":"{}","value":"{}"}}"#, base64(key.as_bytes()), base64(value.as_bytes()))
}

/// The keys in the answer to a range.
pub(super) fn keys(answer: &str) -> Vec<String> {
    let keys = answer.split(r#""key":""#).skip(1);
    keys.map(|rest| from_base64(rest.split('"').next().unwrap_or_default())).collect()
}

const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or_default());
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for letter in 0..4 {
            let value = (bits >> (18 - 6 * letter)) & 63;
            let is_there = letter <= three.len();
            text.push(if is_there { char::from(LETTERS[value as usize]) } else { '=' });
        }
    }
    text
}

fn from_base64(text: &str) -> String {
    let value = |letter: u8| LETTERS.iter().position(|known| *known == letter);
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_usize, 0);
    for value in text.bytes().filter_map(value) {
        bits = (bits << 6 | value) & 0xffff;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count & 255) as u8);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Sends a request and returns the whole answer.
pub(super) async fn http(port: u16, request: &str, body: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    let length = body.len();
    let request = format!(
        "{request} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_encoding_of_the_gateway() {
        for (text, encoded) in
            [("", ""), ("a", "YQ=="), ("ab", "YWI="), ("abc", "YWJj"), ("ü/%", "w7wvJQ==")]
        {
            assert_eq!(base64(text.as_bytes()), encoded);
            assert_eq!(from_base64(encoded), text);
        }
        assert_eq!(range("a"), r#"{"key":"YQ==","range_end":"Yg=="}"#);
        assert_eq!(keys(r#"{"kvs":[{"key":"YQ==","lease":"1"},{"key":"YWI="}]}"#), ["a", "ab"]);
    }
}
