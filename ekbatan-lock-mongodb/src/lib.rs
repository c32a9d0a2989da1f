//! Keyed locks in MongoDB. [`MongoDbBackend`] is the backend; applications use a `LockProvider` over
//! it.
//!
//! ```no_run
//! # async fn example() -> Result<(), ekbatan_lock::LockError> {
//! use std::time::Duration;
//!
//! use ekbatan_lock::{KeyedLockProvider, LockProvider, lock_key};
//! use ekbatan_lock_mongodb::MongoDbBackend;
//!
//! let backend =
//!     MongoDbBackend::connect("mongodb://127.0.0.1:27017/wallet", MongoDbBackend::NAMESPACE).await?;
//! let locks = LockProvider::new(backend, "eu");
//! let lease = locks.acquire(&lock_key!("wallet", 17), Duration::from_secs(10)).await?;
//! // commit while the lease is held: executor.execute(..).fenced_by(&lease)
//! lease.release().await;
//! # Ok(())
//! # }
//! ```
//!
//! `ekbatan::lock::KeyedLocks`, with the feature `mongodb`, opens the backend for a configuration
//! whose `lock-config` names `mongodb://..`.
//!
//! # Guarantees and limits
//!
//! Each key has one document, with its last grant and the queue of those that wait. One update by a
//! pipeline takes a key, gives a place in the queue, extends, or passes the key on; the server
//! decides, by its own clock. Keys are passed on in the order in which processes came. A write counts
//! when a majority of the members has it in its journal.
//!
//! A term ends by the clock of the primary. After a change of the primary it is that of the new one:
//! the clocks of the members have to agree to within what a holder can spare.
//!
//! No lock server can exclude a holder that is paused for longer than its lease. The fence covers
//! that: the token of each grant is greater than all tokens before, and the database rejects a
//! commit that is `fenced_by` a lease once an action with a greater token has begun. Effects
//! outside of the commit, such as a mail or a call to another service, are not protected.
//!
//! A token is the time of its grant in milliseconds, or one more than the last token if that is
//! greater. So tokens grow over a loss of the data. This fails only if the clock is set back at the
//! same time.
//!
//! MongoDB tells nobody of a change without a change stream, which needs a replica set and a
//! connection for each. So a process looks, at all keys that it waits for in one request, after 5 ms
//! at first and every 300 ms in the end.
//!
//! # Requirements
//!
//! MongoDB 4.2 or newer as a replica set or a single server, or FerretDB 2. The backend rejects at
//! the start: a mongos, members that are not primary, older versions, and servers that do not lock a
//! key as a check in the way that MongoDB does. It rejects addresses with another write concern than
//! the majority, without journal, or with another read preference than the primary. It does not
//! check again later.
//!
//! # Stored data
//!
//! One document for each key in the collection of the namespace, and an index by which the server
//! deletes documents of keys that nobody has used for a day.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

mod address;
mod answer;
mod backend;
mod client;
mod documents;
mod login;
mod pipeline;
mod safety;
mod server;
mod waiting;

pub use backend::MongoDbBackend;
pub use server::WithMongoDb;
