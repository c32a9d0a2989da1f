//! Keyed locks in HBase. [`HBaseBackend`] is the backend; applications use a `LockProvider` over it.
//!
//! ```no_run
//! # async fn example() -> Result<(), ekbatan_lock::LockError> {
//! use std::time::Duration;
//!
//! use ekbatan_lock::{KeyedLockProvider, LockProvider, lock_key};
//! use ekbatan_lock_hbase::HBaseBackend;
//!
//! let backend =
//!     HBaseBackend::connect("hbase://localhost:16000", HBaseBackend::NAMESPACE).await?;
//! let locks = LockProvider::new(backend, "eu");
//! let lease = locks.acquire(&lock_key!("wallet", 17), Duration::from_secs(10)).await?;
//! // commit while the lease is held: executor.execute(..).fenced_by(&lease)
//! lease.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! `ekbatan::lock::KeyedLocks`, with the feature `hbase`, opens the backend for a configuration
//! whose `lock-config` names `hbase://..`.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod address;
mod backend;
mod cleaning;
mod client;
mod clock;
mod listing;
mod locks;
mod messages;
mod names;
mod row;
mod safety;
mod seen;
mod server;
mod setup;
mod state;
mod waiting;
mod watched;

pub use backend::HBaseBackend;
pub use server::WithHBase;
