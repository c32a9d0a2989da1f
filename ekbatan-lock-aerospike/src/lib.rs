//! Keyed locks in Aerospike. [`AerospikeBackend`] is the backend; applications use a `LockProvider`
//! over it.
//!
//! ```no_run
//! # async fn example() -> Result<(), ekbatan_lock::LockError> {
//! use std::time::Duration;
//!
//! use ekbatan_lock::{KeyedLockProvider, LockProvider, lock_key};
//! use ekbatan_lock_aerospike::AerospikeBackend;
//!
//! let backend =
//!     AerospikeBackend::connect("aerospike://127.0.0.1:3000/locks", AerospikeBackend::NAMESPACE).await?;
//! let locks = LockProvider::new(backend, "eu");
//! let lease = locks.acquire(&lock_key!("wallet", 17), Duration::from_secs(10)).await?;
//! // commit while the lease is held: executor.execute(..).fenced_by(&lease)
//! lease.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! `ekbatan::lock::KeyedLocks`, with the feature `aerospike`, opens the backend for a configuration
//! whose `lock-config` names `aerospike://..`.
//!
//! # Guarantees and limits
//!
//! Each key has one record, with its last grant. One write with a filter takes, extends or releases
//! a key; the master of the record decides, by its own clock. Terms are milliseconds: they are values
//! in the record. The record's own time to live, in whole seconds, is a day longer, so that the token
//! outlives the grant.
//!
//! A lock is as safe as the namespace:
//!
//! - **Strongly consistent** (Enterprise Edition): one holder at a time, also when the cluster is
//!   divided, and keys of all zones (`LockLevel::Global`). This was not tested.
//! - **Available** (every other): one holder while the cluster is whole. A cluster that is divided may
//!   have one holder in each part, and a node that crashes may forget its last writes. Keys of all
//!   zones are refused.
//!
//! No lock server can exclude a holder that is paused for longer than its lease. The fence covers
//! that, and the second case above: the token of each grant is greater than all tokens before, and
//! the database rejects a commit that is `fenced_by` a lease once an action with a greater token has
//! begun. Effects outside of the commit, such as a mail or a call to another service, are not
//! protected.
//!
//! A token is the time of its grant in milliseconds, or one more than the last token if that is
//! greater. So tokens grow over a loss of the data. This fails only if the clock is set back at the
//! same time. Two parts of a divided cluster may grant the same token within one millisecond.
//!
//! The server tells nobody of a release. A process looks, at all keys that it waits for in one
//! request, after 5 ms at first and every 300 ms in the end. A process that releases a key that others
//! want gives way to them for a moment.
//!
//! # Requirements
//!
//! Aerospike 6.0 or newer. The backend rejects at the start: namespaces that delete records under
//! pressure, that do not wait for replicas, that accept no writes, or whose records never expire, and
//! servers that do not lock a key as a check. It does not check again later. Connections are not
//! encrypted.
//!
//! # Stored data
//!
//! One record for each key in the set of the namespace, which the server deletes when nobody has used
//! the key for a day.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod address;
mod answer;
mod backend;
mod client;
mod in_runtime;
mod record;
mod records;
mod safety;
mod server;

pub use backend::AerospikeBackend;
pub use server::WithAerospike;
