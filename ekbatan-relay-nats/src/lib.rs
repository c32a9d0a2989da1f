//! Sends the committed events of ekbatan to NATS JetStream. Users add the facade crate `ekbatan` with
//! its feature `relay-nats`.
//!
//! A message has the event's id as its `Nats-Msg-Id`, so the stream drops what is sent twice within its
//! duplicate window. The window is compared with the times within which a relay sends again.
//!
//! The files from bottom to top: `settings`, where the server is and which stream; `denials`, where the
//! user may not send; `connection`; `receipts`, what the answers of the server mean; `broker`.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod broker;
mod connection;
mod denials;
mod error;
mod receipts;
mod settings;

pub use broker::NatsBroker;
pub use error::NatsError;
