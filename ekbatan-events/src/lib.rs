//! Handlers for the events that actions emit. Users add the facade crate `ekbatan`, whose module
//! `events` is this crate.
//!
//! The commit that stores an event inserts one delivery for each handler. A [`Node`] claims
//! deliveries, runs their handlers, and deletes each delivery in the commit that has the handler's
//! effect. So that effect is in the database exactly once, however often the handler runs.
//!
//! The rooms from bottom to top: `remote`, the calls to other systems; what an application writes and sees, in the files
//! of this folder; `handlers`, those of a node; `nodes`, what nodes know of each other; `claims`, from due deliveries to
//! those that may start; `runs`, from their start to their end; `worker`, which does all of it on one shard; `node`;
//! `operations`, what operators do.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod claims;
mod dead_letter;
mod decode;
mod delivery_filter;
mod delivery_status;
mod ending;
mod error;
mod failure;
mod handler;
mod handlers;
mod intervention;
mod node;
mod nodes;
mod operations;
mod options;
mod read_events;
mod relay;
mod remote;
mod retention;
mod runs;
mod settings;
mod worker;

pub use dead_letter::{DeadLetter, DeadLetterState};
pub use decode::{DecodeError, HandledEvent};
pub use delivery_filter::DeliveryFilter;
pub use delivery_status::DeliveryStatus;
pub use ending::HandedBack;
pub use error::{EventsError, StartError};
pub use handler::{Delivered, EventHandler, HandlerContext};
pub use intervention::{Intervention, InterventionKind, InterventionState};
pub use node::{HandlerStatus, Node, NodeBuilder};
pub use operations::deliveries::{DeliveryOperations, PendingDelivery};
pub use options::{AfterLastAttempt, HandlerOptions, Order, Rate, RetryDelay, StartFrom};
pub use relay::{
    EventRelay, EventSelection, RelayError, RelaySender, RelayTerms, SentEvent, UndecodedEvent,
};
pub use remote::call::{RemoteCall, RemoteCallState};
pub use remote::error::{RemoteCallError, RemoteFailure};
pub use remote::request::{Reconciled, RemoteRequest};
pub use retention::{Deleted, Retention, RetentionError};

/// What the workspace's other crates need, and users do not.
#[doc(hidden)]
pub mod __private {
    pub use crate::ending::told_to_end;
    pub use crate::intervention::Operator;
    pub use crate::worker::run_tasks::RunTasks;

    /// Why something failed, as text.
    pub mod failure {
        pub use crate::failure::{of_error, of_panic, within};
    }
}
