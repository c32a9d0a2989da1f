//! Sends the committed events of ekbatan to RabbitMQ. Users add the facade crate `ekbatan` with its
//! feature `relay-rabbitmq`.
//!
//! Messages are persistent, mandatory and confirmed, and have the event's id as their `message-id`.
//!
//! The files from bottom to top: `error`; `settings`, where the server is; `socket`, by which a connection ends; `connection` and its channels; `wave`, messages that are sent together and what the server answers to them; `broker`.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod broker;
mod connection;
mod error;
mod settings;
mod socket;
mod wave;

pub use broker::RabbitMqBroker;
pub use error::RabbitMqError;
