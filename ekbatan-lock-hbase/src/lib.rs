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
//!
//! # Guarantees and limits
//!
//! Each key has a row. Its state names the last token, the holder, and those that wait in order. A
//! change is one `checkAndMutate` that names the state it has seen. A cell with a term marks the lease,
//! and the server hides it when the term is over, by its own clock: the clock of the client is never
//! asked. A release passes the key on to the first of those that wait and live.
//!
//! A grant is in the write-ahead log before it is answered. It survives the crash of a region server,
//! as far as the file system keeps what was flushed to it.
//!
//! - HBase notifies nobody. A process that waits looks after 5 ms, and then less and less often, up to
//!   every 300 ms, with one request for each region server that has some of its keys.
//! - Of a process that has died while it waited, the place ends after 3 s. A key that was passed on to
//!   it goes to the next one after 1 s.
//! - Region servers have clocks of their own. When a region moves, its terms are counted by another
//!   clock.
//!
//! No lock server can exclude a holder that is paused for longer than its lease. The fence covers
//! that: the token of each grant is greater than all tokens before, and the database rejects a
//! commit that is `fenced_by` a lease once an action with a greater token has begun. Effects
//! outside of the commit, such as a mail or a call to another service, are not protected.
//!
//! A token is the clock of the cluster in milliseconds, or one more than the last token of the key.
//! The row of a key that nobody uses is deleted after a day, so the clock must not be set back by more
//! than that.
//!
//! # Requirements
//!
//! HBase 2.4 or newer without Kerberos and without encryption of its connections, and the permissions
//! `R`, `W` and `C` on the table: to read, to write, and to see or make it. The backend rejects at the start:
//! older versions; tables that are disabled, read-only or replicated, that do not wait for the
//! write-ahead log, that forget cells or keep several versions of them; servers that do not hide cells
//! whose terms are over. It does not check again later.
//!
//! Keys of all zones are refused unless the address names the one cluster that all zones share, by
//! `?cluster=ID`: replication between clusters is asynchronous, so that each would grant the key.
//!
//! # Stored cells
//!
//! The row `<namespace>/<key>` with the column family `l`: `a` is the state, a text that operators can
//! read; `b` is the mark; `w<owner>` is the sign of life of one that waits. The row `<namespace>` has
//! the version of this format.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod address;
mod backend;
mod cleaning;
mod client;
mod clock;
mod listing;
mod locks;
mod looking;
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
