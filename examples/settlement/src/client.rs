//! What a bank's program does: sends an order over HTTP.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::Failure;
use crate::http::Answer;
use crate::intake::NewOrder;
use crate::order::OrderState;

/// Sends an order. Answers its state, or `None` if there is no such window.
pub async fn send(server: SocketAddr, order: &NewOrder) -> Result<Option<OrderState>, Failure> {
    let body = serde_json::to_string(order)?;
    let request = format!(
        "POST /orders HTTP/1.1\r\nHost: {server}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    let (head, body) =
        response.split_once("\r\n\r\n").ok_or("the answer has no end of its head")?;
    match head.split(' ').nth(1) {
        Some("202" | "409") => Ok(Some(serde_json::from_str::<Answer>(body)?.state)),
        Some("404") => Ok(None),
        _ => {
            Err(format!("the server answered {}: {body}", head.lines().next().unwrap_or(head))
                .into())
        }
    }
}
