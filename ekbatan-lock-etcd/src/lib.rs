//! Keyed locks in etcd. [`EtcdBackend`] is the backend; applications use a `LockProvider` over it.
//!
//! ```no_run
//! # async fn example() -> Result<(), ekbatan_lock::LockError> {
//! use std::time::Duration;
//!
//! use ekbatan_lock::{KeyedLockProvider, LockProvider, lock_key};
//! use ekbatan_lock_etcd::EtcdBackend;
//!
//! let backend =
//!     EtcdBackend::connect("etcd://127.0.0.1:2379", EtcdBackend::NAMESPACE).await?;
//! let locks = LockProvider::new(backend, "eu");
//! let lease = locks.acquire(&lock_key!("wallet", 17), Duration::from_secs(10)).await?;
//! // commit while the lease is held: executor.execute(..).fenced_by(&lease)
//! lease.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! `ekbatan::lock::KeyedLocks`, with the feature `etcd`, opens the backend for a configuration
//! whose `lock-config` names `etcd://..`.
//!
//! # Guarantees and limits
//!
//! Each key has a queue at the server. The acquisition with the first place has the key; the
//! others each watch the place before theirs, so that a release wakes one process, and keys are
//! passed on in the order in which processes came. A grant is in the log of a majority of the
//! members before it is answered: it survives the loss of the others, and of the leader.
//!
//! A place ends with its lease at the server:
//!
//! - Terms are whole seconds, rounded up, and at least what the cluster is configured for: 2 s by
//!   default. The holder itself ends a shorter lease in time. If it has died or is paused, the
//!   key is free when the server's term is over, and up to two seconds later: leases are granted a
//!   second in advance while keys are taken all the time. After a change of the leader the server
//!   counts terms from the beginning.
//! - A caller that waits keeps its place by a sign of life. Of a process that has died, the place
//!   ends after 5 s. The same time bounds a key that was passed on to it and that it has not
//!   confirmed.
//!
//! No lock server can exclude a holder that is paused for longer than its lease. The fence covers
//! that: the token of each grant is greater than all tokens before, and the database rejects a
//! commit that is `fenced_by` a lease once an action with a greater token has begun. Effects
//! outside of the commit, such as a mail or a call to another service, are not protected.
//!
//! A token is the revision at which the place was made, counted from the time at which the
//! namespace was first used, or from a later one once tokens are more than a day behind the clock. So
//! tokens keep growing when the data is lost, and when a process notices that it talks to the
//! restored backup of a cluster. This fails only if the clocks of the processes are set back at the
//! same time, or if the cluster had more than a thousand writes per second since that time. If a
//! backup is restored while no process runs, delete the key `<namespace>/epoch` before one starts.
//!
//! # Requirements
//!
//! etcd 3.4 or newer, and the permission to read and write all keys that begin with
//! `<namespace>/`. The backend rejects at the start: older versions, learners, members with an
//! alarm, members of different clusters in one address. It does not check again later. A member
//! that does not answer at the start, or knows no leader then, is passed over if another one can be used.
//!
//! `etcds://` is encrypted. The certificate has to match the host and be signed by a known
//! authority, or by one in the file that `tls_root_cert` names. Certificates of clients are not
//! supported; the login is a user and a password.
//!
//! # Stored keys
//!
//! `<namespace>/<key>/<owner>` for each acquisition that holds or waits, with the name of the
//! holder as value; `<namespace>/epoch`, the number that tokens are counted from. A `/` in a key
//! is written as `%2F`, and `%` as `%25`.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod address;
mod answer;
mod backend;
mod client;
mod leases;
mod listing;
mod messages;
mod names;
mod places;
mod queue;
mod safety;
mod server;
mod spare_leases;
mod watches;

pub use backend::EtcdBackend;
pub use server::WithEtcd;
