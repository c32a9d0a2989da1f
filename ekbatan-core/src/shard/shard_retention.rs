//! Deletes old rows of the framework on one shard, for the retention of `ekbatan-events`.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Shard;
use crate::db::{DbError, Transaction, TransactionError};
use crate::outbox::deliveries::{Subscriptions, delete_handled, free_rows, keep_events};
use crate::outbox::{
    OldRows, OldStepKey, delete_step_keys, has_old_step_claims, old_step_keys, open_runs,
};

impl Shard {
    /// Deletes the events that were written more than `age` ago and that no handler needs, at most
    /// `at_once` in a transaction. Returns how many.
    #[doc(hidden)]
    pub async fn delete_handled(
        &self,
        subscriptions: &Subscriptions,
        age: Duration,
        now: DateTime<Utc>,
        at_once: usize,
    ) -> Result<u64, TransactionError<DbError>> {
        delete_handled(&self.database, subscriptions, age, now, at_once).await
    }

    /// Deletes rows with a date before this one, at most `at_once` in a transaction. Returns how many.
    #[doc(hidden)]
    pub async fn delete_old(
        &self,
        rows: OldRows,
        before: DateTime<Utc>,
        at_once: usize,
    ) -> Result<u64, TransactionError<DbError>> {
        rows.delete(&self.database, before, at_once).await
    }

    /// The keys of steps with a date before this one, the oldest first, at most `most`: those that come
    /// after the last one of an earlier answer.
    #[doc(hidden)]
    pub async fn old_step_keys(
        &self,
        before: DateTime<Utc>,
        after: Option<OldStepKey>,
        most: usize,
    ) -> Result<Vec<OldStepKey>, DbError> {
        old_step_keys(&self.database, before, after, most).await
    }

    /// Deletes keys of one answer.
    #[doc(hidden)]
    pub async fn delete_step_keys(&self, keys: &[OldStepKey]) -> Result<(), DbError> {
        delete_step_keys(&self.database, keys).await
    }

    /// Whether there is a claim of a step with a date before this one.
    #[doc(hidden)]
    pub async fn has_old_step_claims(&self, before: DateTime<Utc>) -> Result<bool, DbError> {
        has_old_step_claims(&self.database, before).await
    }

    /// The runs of jobs that have not ended, if this is the shard of the jobs.
    #[doc(hidden)]
    pub async fn open_runs(&self) -> Result<HashSet<Uuid>, DbError> {
        open_runs(&self.database).await
    }

    /// Keeps events from being deleted until a transaction of this shard ends. Returns those that
    /// are there.
    #[doc(hidden)]
    pub async fn keep_events(
        &self,
        within: &Transaction,
        events: Vec<Uuid>,
    ) -> Result<HashSet<Uuid>, DbError> {
        keep_events(within, events).await
    }

    /// Those of these deliveries that are there and that no other transaction keeps locked.
    #[doc(hidden)]
    pub async fn free_deliveries(
        &self,
        within: &Transaction,
        deliveries: Vec<Uuid>,
    ) -> Result<HashSet<Uuid>, DbError> {
        free_rows(within, deliveries).await
    }
}
