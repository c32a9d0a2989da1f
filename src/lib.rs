//! Business operations on SQL databases.
//!
//! An [`Action`](action::Action) reads rows, decides, and stages changes on a plan. The
//! [`ActionExecutor`](action::ActionExecutor) commits the changed rows and the events they
//! emit in one transaction. Row versions guard every update, and the executor retries an
//! action whose rows were stale. The same code runs on an embedded SQLite file, PostgreSQL,
//! MySQL and MariaDB, on one database or on many shards: the configuration decides.
//!
//! ```
//! # mod wallet { include!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/snippets/wallet.rs")); }
//! # use wallet::{Deposit, OpenWallet, Opening, Wallet, WalletError, migrations};
//! use ekbatan::prelude::*;
//!
//! struct TopUp;
//!
//! impl Action for TopUp {
//! #   const NAME: &'static str = "wallet.top_up";
//! #   type Params = Deposit;
//! #   type Output = Stored<Wallet>;
//! #   type Error = WalletError;
//!     // const NAME, type Params, type Output, type Error
//!     async fn perform(&self, ctx: &mut ActionContext<'_>, params: &Deposit) -> Result<Stored<Wallet>, WalletError> {
//!         let wallet = ctx.get(params.wallet).await?;                // the row, its version, its dates
//!         let wallet = wallet.change(|w| w.deposit(params.amount))?; // the next value and its event
//!         Ok(ctx.plan().update(wallet))                              // staged; the executor commits it
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let file = ekbatan_testkit::TempSqlite::new()?;
//! # let url = file.url();
//! let databases = Databases::open(&url).await?; // sqlite:FILE, postgres://.., mysql://.., mariadb://..
//! databases.migrate(&migrations()).await?;
//! let executor = ActionExecutor::builder(&databases, "com.example.wallet").model::<Wallet>().build().await?;
//! # let id = executor.execute(&OpenWallet, Opening::new("alice")).await?.id;
//! let deposit = Deposit { wallet: id, amount: Decimal::from(5) };
//! let wallet = executor.execute(&TopUp, deposit).principal("alice").idempotency_key("top-up-1").await?;
//! assert_eq!((wallet.balance, wallet.version()), (Decimal::from(5), 2));
//! # Ok(())
//! # }
//! ```
//!
//! `examples/wallet` in the repository has the model, its events and its migrations; the guide
//! in `docs/` explains models, actions and migrations.
//!
//! # Modules
//!
//! | Module | Contents |
//! |---|---|
//! | [`prelude`] | The names that nearly every program uses. |
//! | [`domain`] | Ids, models, events, states, and the wrappers `New`, `Stored` and `Changed`. |
//! | [`action`] | Actions, the executor, retries, idempotency, strategies for contended rows. |
//! | [`repository`] | Reads by id, by condition and by page; writes outside of actions. |
//! | [`shard`] | The registry of databases, placement of rows on shards, partial commits. |
//! | [`db`] | Migrations, transactions, connections for raw SQL, database errors. |
//! | [`config`] | The configuration, from YAML, the environment and code. |
//! | [`lock`] | Keyed locks: in this process, in a database, in Redis, etcd, MongoDB, Aerospike or HBase. |
//! | [`events`] | Nodes and handlers: what happens after a commit, in order and once. |
//! | [`jobs`] | Jobs that run by a schedule: one run for each slot, over any number of nodes. |
//! | [`relay`] | Relays, which send committed events to message brokers. |
//! | [`clock`] | The source of time, which tests replace. |
//!
//! # Features
//!
//! | Feature | Default | Adds |
//! |---|---|---|
//! | `sqlite` | yes | SQLite, compiled in; needs a C compiler and no server. |
//! | `postgres` | yes | PostgreSQL. |
//! | `mysql` | yes | MySQL and MariaDB. |
//! | `events` | yes | Handlers for events. |
//! | `jobs` | yes | Jobs that run by a schedule. |
//! | `relay` | yes | Relays of events, and the broker of this process. |
//! | `relay-nats` | no | Relays to NATS JetStream. |
//! | `relay-rabbitmq` | no | Relays to RabbitMQ. |
//! | `relay-kafka` | no | Relays to Apache Kafka. |
//! | `redis` | no | Keyed locks in Redis or Valkey. |
//! | `etcd` | no | Keyed locks in etcd. |
//! | `hbase` | no | Keyed locks in HBase. |
//! | `mongodb` | no | Keyed locks in MongoDB. |
//! | `aerospike` | no | Keyed locks in Aerospike. |
//!
//! The framework reports spans and events through [`tracing`](https://docs.rs/tracing), and
//! works without a subscriber.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, missing_docs)]

// The derives write `::ekbatan`, also in this crate's own tests and examples.
extern crate self as ekbatan;

#[cfg(doctest)]
mod guide;

pub use ekbatan_core::{action, clock, config, db, domain, repository, shard};

/// Each derive macro together with the trait that it implements.
#[doc(inline)]
pub use ekbatan_core::domain::{Entity, Event, Field, Model, State};
#[doc(inline)]
pub use ekbatan_macros::{Entity, Event, Field, Model, State};

#[doc(inline)]
pub use ekbatan_core::lock_key;

/// The crates whose types are column types, in the versions that this crate uses.
#[doc(no_inline)]
pub use {chrono, rust_decimal, uuid};

#[doc(hidden)]
pub use ekbatan_core::__private;

/// Handlers for the events that actions emit.
#[cfg(feature = "events")]
#[doc(inline)]
pub use ekbatan_events as events;

/// Jobs that run by a schedule.
#[cfg(feature = "jobs")]
#[doc(inline)]
pub use ekbatan_jobs as jobs;

pub mod lock;
#[cfg(feature = "relay")]
pub mod relay;

/// The names that nearly every program uses. Everything else has a path, such as
/// [`domain::New`] or [`action::RetryPolicy`].
pub mod prelude {
    pub use crate::lock::{
        ExecuteLocked as _, KeyedLockProvider, KeyedLocks, LockOptions, LockSource as _, lock_key,
    };
    pub use crate::{Entity, Event, Model, State};
    pub use chrono::{DateTime, Utc};
    pub use ekbatan_core::action::{
        Action, ActionContext, ActionExecutor, Contention, ExecuteError,
    };
    pub use ekbatan_core::config::EkbatanConfig;
    pub use ekbatan_core::db::Migrations;
    pub use ekbatan_core::domain::{Id, ShardedId, Stored};
    pub use ekbatan_core::repository::ReadError;
    pub use ekbatan_core::shard::Databases;
    pub use rust_decimal::Decimal;
    pub use uuid::Uuid;
}
