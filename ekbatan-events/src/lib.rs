//! Handlers for the events that actions emit. Users add the facade crate `ekbatan`, whose module
//! `events` is this crate.
//!
//! The commit that stores an event inserts one delivery for each handler. A [`Node`] claims
//! deliveries, runs their handlers, and deletes each delivery in the commit that has the handler's
//! effect. So that effect is in the database exactly once, however often the handler runs.
//!
//! The files from bottom to top: `options`, `decode`, `error`, `dead_letter`, `handler` and `settings` are what
//! an application sees; `handler_set`; `membership` and `registration`, the rows of nodes and subscriptions; `claim`,
//! `poll` and `streams`, from due deliveries to those that may start; `delivery_run`; `shard_worker` and `node`;
//! `operations`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod claim;
mod dead_letter;
mod decode;
mod delivery_run;
mod error;
mod handler;
mod handler_set;
mod membership;
mod node;
mod operations;
mod options;
mod poll;
mod registration;
mod settings;
mod shard_worker;
mod streams;

pub use dead_letter::{DeadLetter, DeadLetterState};
pub use decode::{DecodeError, HandledEvent};
pub use error::{EventsError, StartError};
pub use handler::{Delivered, EventHandler, HandlerContext};
pub use node::{HandlerStatus, Node, NodeBuilder};
pub use operations::{DeliveryOperations, PendingDelivery};
pub use options::{AfterLastAttempt, HandlerOptions, Order, RetryDelay, StartFrom};
