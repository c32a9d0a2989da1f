//! Why NATS cannot be used.

use std::time::Duration;

/// Error returned when a relay cannot use NATS.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NatsError {
    /// No server answers at the address.
    #[error("no connection: {0}")]
    Connect(#[source] async_nats::ConnectError),
    /// The servers of the address have different logins.
    #[error(
        "the servers of the address have different logins; write the same one before each, or one by `login` (`username` and `password` in YAML)"
    )]
    SeveralLogins,
    /// A file of the login or of certificates cannot be read.
    #[error("the file `{file}` cannot be read: {source}")]
    #[non_exhaustive]
    File {
        /// The file.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The stream cannot be found.
    #[error(
        "there is no stream `{stream}`: {source}; create it, or let the relay do it by `create_stream` with its subjects"
    )]
    #[non_exhaustive]
    NoStream {
        /// The stream.
        stream: String,
        /// The cause.
        source: async_nats::jetstream::context::GetStreamError,
    },
    /// The stream cannot be created.
    #[error("the stream `{stream}` cannot be created: {source}")]
    #[non_exhaustive]
    Create {
        /// The stream.
        stream: String,
        /// The cause.
        source: async_nats::jetstream::context::CreateStreamError,
    },
    /// The stream forgets ids too early.
    #[error(
        "the stream `{stream}` recognises a repetition for {window:?}, and the relay may repeat a message after {needed:?}: set the stream's duplicate window to at least {needed:?}, or shorten the lease of nodes"
    )]
    #[non_exhaustive]
    Window {
        /// The stream.
        stream: String,
        /// Its duplicate window.
        window: Duration,
        /// What is needed.
        needed: Duration,
    },
    /// The stream acknowledges nothing.
    #[error("the stream `{0}` acknowledges no messages (`no_ack`); a relay needs acknowledgements")]
    NoAck(String),
    /// The stream keeps messages for its consumers only, and has none.
    #[error(
        "the stream `{0}` keeps messages only for its consumers (`retention: interest`) and has none, so it would acknowledge events and keep none; create a durable consumer first (a stream that sources this one does not count)"
    )]
    NoConsumer(String),
    /// The server does not answer.
    #[error("the server did not answer within {0:?}")]
    Silent(Duration),
}
