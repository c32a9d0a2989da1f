//! Why RabbitMQ cannot be used.

use std::time::Duration;

use lapin::ErrorKind;
use lapin::protocol::{AMQPErrorKind, AMQPSoftError};

/// Error returned when a relay cannot use RabbitMQ.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RabbitMqError {
    /// The address cannot be read.
    #[error(
        "the address {address} {why}; write amqp://HOST:5672/VHOST, or amqps:// for encryption"
    )]
    #[non_exhaustive]
    Address {
        /// The address, without its login.
        address: String,
        /// What is wrong with it.
        why: String,
    },
    /// A file of certificates cannot be read.
    #[error("the file `{file}` cannot be read: {source}")]
    #[non_exhaustive]
    File {
        /// The file.
        file: String,
        /// The cause.
        source: std::io::Error,
    },
    /// The server refused the connection or a request, or is not there.
    #[error("{0}")]
    Server(#[from] lapin::Error),
    /// The exchange cannot be used.
    #[error(
        "the exchange `{exchange}` cannot be used: {source}; declare it, and bind the queues of its receivers to it"
    )]
    #[non_exhaustive]
    Exchange {
        /// The exchange.
        exchange: String,
        /// The cause.
        source: lapin::Error,
    },
    /// The user may not write to the exchange.
    #[error(
        "the exchange `{exchange}` cannot be used: {source}; give the user the right to write to it"
    )]
    #[non_exhaustive]
    ExchangeRights {
        /// The exchange.
        exchange: String,
        /// The cause.
        source: lapin::Error,
    },
    /// The name of the exchange is too long.
    #[error("the name of the exchange has {bytes} bytes; use at most {most}")]
    #[non_exhaustive]
    ExchangeName {
        /// How many bytes it has.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
    /// The server takes no messages.
    #[error(
        "the server has blocked the connection: an alarm is in force, of its memory or its disk"
    )]
    Blocked,
    /// The server does not answer.
    #[error("the server did not answer within {0:?}")]
    Silent(Duration),
}

impl RabbitMqError {
    /// The error of a channel that the server closed because of an exchange.
    pub(crate) fn of_exchange(exchange: &str, source: lapin::Error) -> Self {
        let exchange = exchange.to_owned();
        if is_soft(&source, AMQPSoftError::ACCESSREFUSED) {
            Self::ExchangeRights { exchange, source }
        } else {
            Self::Exchange { exchange, source }
        }
    }
}

/// Whether the server closed the channel with this code.
pub(crate) fn is_soft(error: &lapin::Error, code: AMQPSoftError) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(error) if *error.kind() == AMQPErrorKind::Soft(code))
}
