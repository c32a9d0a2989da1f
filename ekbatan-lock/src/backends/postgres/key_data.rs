//! The server process that a connection was told about when it was opened.
//!
//! A server names its own process. A pooler hands out numbers of its own, because it directs
//! requests to cancel. The driver shows the number only in such a request, so the request is
//! written into memory and read there.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, TlsConnect, TlsStream};
use tokio_postgres::{Client, Error};

/// The length of a request to cancel, and the code in it.
const LENGTH: i32 = 16;
const CANCEL: i32 = 80_877_102;

/// The process that the other side named when the connection was opened.
pub(super) async fn named_process(client: &Client) -> Option<i32> {
    let written = Arc::new(Mutex::new(Vec::new()));
    let token = client.cancel_token();
    token.cancel_query_raw(Recorder(written.clone()), NoEncryption).await.ok()?;
    let written = written.lock().unwrap_or_else(PoisonError::into_inner);
    // A request for encryption may come before it.
    let (_, request) = written.split_last_chunk::<16>()?;
    let (words, _) = request.as_chunks::<4>();
    match words {
        [length, code, process, _] => {
            let is_cancel =
                (i32::from_be_bytes(*length), i32::from_be_bytes(*code)) == (LENGTH, CANCEL);
            is_cancel.then(|| i32::from_be_bytes(*process))
        }
        _ => None,
    }
}

/// Whether the process that answers is the one that was named: then there is no pooler.
pub(super) async fn is_direct(client: &Client) -> Result<bool, Error> {
    let named = named_process(client).await;
    let answers = client.query_typed_one("SELECT pg_backend_pid()", &[]).await?;
    Ok(named == Some(answers.get(0)))
}

/// Keeps what is written. It agrees to encryption, which [`NoEncryption`] then omits.
struct Recorder(Arc<Mutex<Vec<u8>>>);

struct NoEncryption;

impl TlsConnect<Recorder> for NoEncryption {
    type Stream = Recorder;
    type Error = io::Error;
    type Future = Ready<io::Result<Recorder>>;

    fn connect(self, stream: Recorder) -> Self::Future {
        ready(Ok(stream))
    }
}

impl TlsStream for Recorder {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Recorder {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0 {
            buffer.put_slice(b"S");
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Recorder {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
