//! Handlers for the events that actions emit. Users add the facade crate `ekbatan`, whose module
//! `events` is this crate.
//!
//! The commit that stores an event inserts one delivery for each handler. A [`Node`] claims
//! deliveries, runs their handlers, and deletes each delivery in the commit that has the handler's
//! effect. So that effect is in the database exactly once, however often the handler runs.
//!
//! The files from bottom to top: `options`, `decode`, `error`, `intervention`, `dead_letter`, `delivery_filter`,
//! `failure`, `ending`, `remote_call`, `remote_error`, `remote_store`, `remote_request`, `handler` and `relay` are what an
//! application sees; `any_handler`, `node_handler` and `handler_set`; `alive`, `fences`, `membership`, `subscription_changes` and `registration`, the rows of nodes
//! and subscriptions; `retention` and `settings`; `delivery_status`; `read_events`; `claimed`, `round_writes`, `put_off`, `elsewhere`,
//! `candidates`, `claim`, `unheld`, `poll`, `streams`, `held_sizes` and `rounds`, from due
//! deliveries to those that may start; `unwanted`, `marks`, `delivery_run` and `relay_run`; `run_tasks`, `relay_gates`, `doorbell`, `gauges`, `heart`, `shard_worker`, `hand_back` and `node`; `operations`, `filtered_rows`,
//! `bulk`, `handler_operations` and `remote_operations`, what operators do.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod alive;
mod any_handler;
mod bulk;
mod candidates;
mod claim;
mod claimed;
mod dead_letter;
mod decode;
mod delivery_filter;
mod delivery_run;
mod delivery_status;
mod doorbell;
mod elsewhere;
mod ending;
mod error;
mod failure;
mod fences;
mod filtered_rows;
mod gauges;
mod hand_back;
mod handler;
mod handler_operations;
mod handler_set;
mod heart;
mod held_sizes;
mod intervention;
mod look_from;
mod marks;
mod membership;
mod node;
mod node_handler;
mod operations;
mod options;
mod poll;
mod put_off;
mod read_events;
mod ready_queue;
mod registration;
mod relay;
mod relay_gates;
mod relay_run;
mod remote_call;
mod remote_error;
mod remote_operations;
mod remote_request;
mod remote_store;
mod retention;
mod round_writes;
mod rounds;
mod rows_before;
mod run_tasks;
mod settings;
mod shard_worker;
mod streams;
mod subscription_changes;
mod unheld;
mod unwanted;

pub use dead_letter::{DeadLetter, DeadLetterState};
pub use decode::{DecodeError, HandledEvent};
pub use delivery_filter::DeliveryFilter;
pub use delivery_status::DeliveryStatus;
pub use ending::HandedBack;
pub use error::{EventsError, StartError};
pub use handler::{Delivered, EventHandler, HandlerContext};
pub use intervention::{Intervention, InterventionKind, InterventionState};
pub use node::{HandlerStatus, Node, NodeBuilder};
pub use operations::{DeliveryOperations, PendingDelivery};
pub use options::{AfterLastAttempt, HandlerOptions, Order, Rate, RetryDelay, StartFrom};
pub use relay::{
    EventRelay, EventSelection, RelayError, RelaySender, RelayTerms, SentEvent, UndecodedEvent,
};
pub use remote_call::{RemoteCall, RemoteCallState};
pub use remote_error::{RemoteCallError, RemoteFailure};
pub use remote_request::{Reconciled, RemoteRequest};
pub use retention::{Deleted, Retention, RetentionError};

/// What the workspace's other crates need, and users do not.
#[doc(hidden)]
pub mod __private {
    pub use crate::ending::told_to_end;
    pub use crate::intervention::Operator;
    pub use crate::run_tasks::RunTasks;

    /// Why a handler or a job failed, as text.
    pub mod failure {
        pub use crate::failure::{of_error, of_panic};
    }
}
