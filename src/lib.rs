//! Business operations on SQL databases: versioned rows and their events in one durable
//! commit. The README shows what that looks like, the guide in `docs/` explains it.
//!
//! This crate is the facade; `ekbatan-core` holds what is behind it.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

// The derives write `::ekbatan`, also in this crate's own tests and examples.
extern crate self as ekbatan;

#[cfg(doctest)]
mod guide;

pub use ekbatan_core::lock_key;
pub use ekbatan_core::{action, clock, config, db, domain, repository, shard};
#[doc(inline)]
pub use ekbatan_macros::{Entity, Event, Field, Model, State};

#[doc(hidden)]
pub use ekbatan_core::__private;

/// Keyed locks: leases on keys, with one contract over every backend.
pub mod lock {
    #[doc(no_inline)]
    pub use ekbatan_lock::*;
    /// With Redis among the providers.
    #[cfg(feature = "redis")]
    pub use ekbatan_lock_redis::{KeyedLocks, RedisBackend, WithRedis};
}

/// What everyday code names.
pub mod prelude {
    pub use crate::lock::KeyedLocks;
    pub use chrono::{DateTime, NaiveDate, Utc};
    pub use ekbatan_core::action::{
        Action, ActionContext, ActionExecutor, ActionPlan, Adaptive, Coalesced, Contention, Effect,
        ErrorKind, ExecuteError, Handling, HotKey, Outcome, Pessimistic, RetryPolicy,
    };
    pub use ekbatan_core::config::{DataSourceConfig, EkbatanConfig};
    pub use ekbatan_core::db::{ActionId, CommitToken, Committed, Migrations};
    pub use ekbatan_core::domain::{
        Changed, Entity, Event, Field, Id, Json, Model, New, SoftDelete, State, Stored,
    };
    pub use ekbatan_core::repository::{
        Column, Condition, Direction, PageRequest, ReadError, Repository,
    };
    pub use ekbatan_core::shard::{Databases, ShardIdentifier, ShardedId, Sharding};
    pub use ekbatan_lock::{
        ExecuteLocked, KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockProvider,
        RunOnce, WithLockError, lock_key,
    };
    pub use ekbatan_macros::{Entity, Event, Field, Model, State};
    pub use rust_decimal::Decimal;
    pub use uuid::Uuid;
}
