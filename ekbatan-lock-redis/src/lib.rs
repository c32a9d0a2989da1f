//! Keyed locks in Redis or Valkey: [`RedisBackend`] is the backend, and a `LockProvider` over
//! it is what an application uses.
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
//! // … and the commit: executor.execute(..).fenced_by(&lease)
//! lease.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! `ekbatan::lock::KeyedLocks`, with the feature `redis`, opens it for a configuration whose
//! `lock-config` names `redis://..`.
//!
//! # What it promises, and what it cannot
//!
//! The locks live in the memory of **one master**. As long as it runs, a key has one holder,
//! and nobody ends or extends a lease but its holder, its time, or an operator.
//!
//! What one master cannot promise:
//!
//! - **Fail-over.** Replication is asynchronous: a replica that is promoted may not have heard
//!   of the last grants. Their holders still believe that they hold, and others are granted
//!   the same keys. The same goes for a server that is restarted without its data.
//! - **Pauses.** A holder that stands still for longer than its lease finds out late.
//!
//! Both are what the fence is for. Each grant has a token that is greater than every one
//! before; a commit that is `fenced_by` the lease is refused by the database as soon as
//! somebody with a greater token has begun. So two may hold; **only the later one commits**.
//! What is not part of such a commit, a mail or a call of another service, is not protected.
//!
//! Tokens go on growing when the data is lost, because they are never less than the server's
//! clock in milliseconds. That fails only if the clock is set back at the same time, if the
//! clock of a promoted replica is behind by more than the fail-over took, or if a single key
//! was granted more than a thousand times a second for so long that its count is ahead of
//! the clock.
//!
//! # What it needs
//!
//! Redis 5 or any Valkey; scripts, and `PUBLISH` and `SUBSCRIBE` on the channel
//! `<namespace>:freed`; `INFO`, for the checks at the start. `maxmemory-policy` must be
//! `noeviction` where memory is bounded: a lock that is evicted is held twice. A replica, an
//! evicting server and a part of a cluster are refused at the start, and not looked at again.
//!
//! `rediss://` is encrypted, and the certificate has to be that of the host and stem from a known
//! authority, or from one in the file that `tls_root_cert` names; `tls_mode` asks for less, or for
//! encryption where the address does not.
//!
//! # What it keeps there
//!
//! For each key, `<namespace>:{key}` while it is held; `<namespace>:fence:{key}`, a number
//! that stays for ever; and `<namespace>:wanted:{key}` for two seconds after somebody had to
//! wait. The braces keep the keys of a lock together where keys are spread over servers.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod backend;
mod commands;
mod hints;
mod names;
mod safety;
mod scripts;
mod server;

pub use backend::RedisBackend;
pub use server::WithRedis;
