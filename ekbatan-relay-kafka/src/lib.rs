//! Sends the committed events of ekbatan to Apache Kafka. Users add the facade crate `ekbatan` with its
//! feature `relay-kafka`.
//!
//! Each relay of a node has a producer of its own on each shard, whose transactional id contains the identity of
//! the node. A batch is a transaction. Before another node gets what a lost node had claimed, it takes the
//! transactional id of the lost one over; from then on the cluster refuses whatever that one sends.
//!
//! The files from bottom to top: `error`; `settings`, where the cluster is; `answers`, what the errors of the
//! cluster mean; `missing_topics`; `node_producer`, the producer of a relay of a node; `broker`.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod answers;
mod broker;
mod error;
mod missing_topics;
mod node_producer;
mod settings;

pub use broker::KafkaBroker;
pub use error::KafkaError;
pub use settings::KafkaLogin;
