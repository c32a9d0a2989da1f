//! Keyed locks in Redis or Valkey. [`RedisBackend`] is the backend; applications use a
//! `LockProvider` over it.
//!
//! ```no_run
//! # async fn example() -> Result<(), ekbatan_lock::LockError> {
//! use std::time::Duration;
//!
//! use ekbatan_lock::{KeyedLockProvider, LockProvider, lock_key};
//! use ekbatan_lock_redis::RedisBackend;
//!
//! let backend =
//!     RedisBackend::connect("redis://127.0.0.1:6379/0", RedisBackend::NAMESPACE).await?;
//! let locks = LockProvider::new(backend, "eu");
//! let lease = locks.acquire(&lock_key!("wallet", 17), Duration::from_secs(10)).await?;
//! // commit while the lease is held: executor.execute(..).fenced_by(&lease)
//! lease.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! `ekbatan::lock::KeyedLocks`, with the feature `redis`, opens the backend for a configuration
//! whose `lock-config` names `redis://..`.
//!
//! # Guarantees and limits
//!
//! The locks live in the memory of **one master**. While it runs, a key has one holder, and a
//! lease ends or is extended only by its holder, its term or an operator.
//!
//! One master cannot guarantee exclusion in two cases:
//!
//! - **Fail-over.** Replication is asynchronous. A promoted replica may not know the last
//!   grants, and grants the same keys to others while the old holders continue. The same
//!   applies to a server that restarts without its data.
//! - **Pauses.** A holder that is paused for longer than its lease notices that too late.
//!
//! The fence covers both. The token of each grant is greater than all tokens before. The
//! database rejects a commit that is `fenced_by` a lease once an action with a greater token
//! has begun. Two holders are possible, but **only the later one commits**. Effects outside of
//! the commit, such as a mail or a call to another service, are not protected.
//!
//! Tokens keep growing when the data is lost, because they are never less than the server's
//! clock in milliseconds. For the same reason the last token of a key that nobody has used for a
//! day need not be kept. This fails only if the clock is set back at the same time (for a key
//! without its last token, by more than a day), if the
//! clock of a promoted replica is behind by more than the time of the fail-over, or if a single
//! key was granted more than a thousand times per second for so long that its token is ahead
//! of the clock.
//!
//! # Requirements
//!
//! Redis 5 or any Valkey; scripts; `PUBLISH` and `SUBSCRIBE` on the channel
//! `<namespace>:freed`; `INFO` for the checks at the start. If memory is bounded,
//! `maxmemory-policy` must be `noeviction`, because an evicted lock can be granted twice. The
//! backend rejects a replica, a server that evicts and a node of a larger cluster at the start;
//! it does not check again later.
//!
//! `rediss://` is encrypted. The certificate has to match the host and be signed by a known
//! authority, or by one in the file that `tls_root_cert` names. `tls_mode` can relax these
//! checks, or request encryption that the address does not.
//!
//! The driver encrypts by the `CryptoProvider` of rustls that the process has installed. If there
//! is none at the first encrypted connection, the backend installs ring's for the whole process.
//! A program that wants another one installs it before.
//!
//! # Stored keys
//!
//! For each lock: `<namespace>:{key}` while it is held; `<namespace>:fence:{key}`, the last
//! token, until a day after the time that this token stands for; `<namespace>:wanted:{key}`, for
//! three seconds after a caller had to wait; and `<namespace>:given-up:{key}:<owner>`, for a minute
//! after a try whose answer was lost. The braces keep the keys of a lock on one node
//! of a cluster.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod answer;
mod backend;
mod client;
mod commands;
mod listing;
mod names;
mod passing;
mod safety;
mod scripts;
mod server;
mod subscription;
mod waited;

pub use backend::RedisBackend;
pub use server::WithRedis;
