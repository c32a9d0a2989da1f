//! Sends the committed events of ekbatan to message brokers. Users add the facade crate `ekbatan`,
//! whose module `relay` is this crate and those of the brokers that its features name.
//!
//! A [`Relay`] is a subscription with a stored name, like a handler: the commit that stores an event
//! inserts its delivery, a node of `ekbatan-events` claims it, and deletes it after the broker has
//! acknowledged the message. This crate says what becomes of an event on its way: its topic, its key and
//! headers, the order of its model, and what the broker's answer means.
//!
//! The files from bottom to top: `address`; `message`, `broker`, the contract of brokers; `in_order`, which
//! hands messages over one after another where the order needs it; `in_process`, a broker; `error`; `relay`.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod address;
mod broker;
mod error;
mod in_order;
mod in_process;
mod message;
mod relay;

pub use broker::{Broker, BrokerError, PUBLISH_TIME, Receipt, check_ack_timeout};
pub use ekbatan_core::config::TopicError;
pub use ekbatan_events::{EventSelection, RelaySender, RelayTerms, UndecodedEvent};
pub use error::ConfiguredRelayError;
pub use in_process::{InProcessBroker, InProcessMessage, InProcessSubscription};
pub use message::{OutgoingMessage, header};
pub use relay::Relay;

/// What the crates of brokers share. It may change in any release.
#[doc(hidden)]
pub mod __private {
    pub use crate::address::ends_in_password;
}
