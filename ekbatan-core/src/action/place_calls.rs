//! What a shard stores of the calls for later that an action enqueues and cancels.
//!
//! Invariant: no call is added while the last one with its unique key waits, and calls with one key in turn
//! have growing versions. Whoever enqueues one changes the row of the key at the version that was
//! read, so of two that do so at once, the second reads it again.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::ExecuteError;
use crate::clock::{Clock, to_micros};
use crate::db::{
    Database, DbError, DbErrorKind, StageError, Staged, StagedExpectation, TableError,
    stage_changed, stage_deleted, stage_expected,
};
use crate::domain::{Id, IdGenerator, New, Stored};
use crate::outbox::deliveries::{Delivery, DeliveryState, delivery_id};
use crate::outbox::{CallRecord, EnqueueStep, EnqueuedKey, EnqueuedKeyState, KeyUse, PlacedCall};
use crate::repository::{ReadError, Repository, WriteError};
use crate::shard::Shards;

const HOLDER: &str = "enqueued calls";

/// What a batch stores of the calls.
#[derive(Debug, Default)]
pub(super) struct PlacedCalls<'r> {
    pub(super) calls: Vec<PlacedCall<'r>>,
    /// The rows of keys, and the deliveries of cancelled calls.
    pub(super) rows: Vec<Staged>,
    /// The deliveries that make a call needless, and the rows of keys whose calls were cancelled.
    pub(super) expected: Vec<StagedExpectation>,
}

/// A key, as the steps of an action leave it.
struct Key {
    row: Stored<EnqueuedKey>,
    /// The delivery of the last call that is stored, if it has not ended.
    stored: Option<Stored<Delivery>>,
    /// The delivery of the last call of this action.
    enqueued: Option<Uuid>,
    /// Whether the steps have cancelled the last call.
    is_cancelled: bool,
}

type Keys = HashMap<Id<EnqueuedKey>, Key>;

/// Places calls on the shard of a database.
pub(super) struct CallPlacer<'a> {
    ids: &'a IdGenerator,
    now: DateTime<Utc>,
    keys: Repository<EnqueuedKey>,
    deliveries: Repository<Delivery>,
}

impl<'a> CallPlacer<'a> {
    pub(super) fn new(
        database: &Arc<Database>,
        clock: &Arc<dyn Clock>,
        ids: &'a IdGenerator,
        now: DateTime<Utc>,
    ) -> Self {
        let shards = Arc::new(Shards::only(database));
        Self {
            ids,
            now: to_micros(now),
            keys: Repository::new(shards.clone(), clock.clone(), HOLDER).outside_transaction(),
            deliveries: Repository::new(shards, clock.clone(), HOLDER),
        }
    }

    pub(super) async fn place<'r>(
        &self,
        steps: &'r [EnqueueStep],
    ) -> Result<PlacedCalls<'r>, PlaceError> {
        let mut keys = self.keys_of(steps).await?;
        let mut placed = PlacedCalls::default();
        for step in steps {
            match step {
                EnqueueStep::Enqueue(call) => self.enqueue(call, &mut keys, &mut placed)?,
                EnqueueStep::Cancel { action, key } => {
                    let id = EnqueuedKey::id_of(KeyUse::Unique, action, key);
                    let Some(of) = keys.get_mut(&id) else { continue };
                    of.is_cancelled = true;
                    if of.enqueued.take().is_some() {
                        placed.calls.retain(|call| !call.record.is_unique_by(action, key));
                    }
                    if let Some(stored) = of.stored.take() {
                        placed.rows.push(stage_deleted(&stored)?);
                    }
                }
            }
        }
        for Key { row, enqueued, is_cancelled, .. } in keys.into_values() {
            if let Some(delivery) = enqueued {
                let changed = row.apply(|row| (row.delivery, row.changed) = (delivery, self.now));
                placed.rows.push(stage_changed(changed, self.now)?.0);
            } else if is_cancelled {
                // The action may have read what an earlier one of its group leaves, and that one may
                // enqueue a call with the key. It is not stored yet, so there is none to delete.
                placed
                    .expected
                    .push(StagedExpectation { is_locked: false, ..stage_expected(&row)? });
            }
        }
        // The calls of one version of a stream stand beside each other.
        placed.calls.sort_by_key(|call| call.stream);
        Ok(placed)
    }

    fn enqueue<'r>(
        &self,
        record: &'r CallRecord,
        keys: &mut Keys,
        placed: &mut PlacedCalls<'r>,
    ) -> Result<(), PlaceError> {
        let id = self.ids.next_uuid();
        let delivery = delivery_id(id, record.action);
        if let Some(of) = record.unique_key().and_then(|id| keys.get_mut(&id)) {
            if of.enqueued.is_some() {
                return Ok(());
            }
            if let Some(stored) = of.stored.as_ref().filter(|stored| waits(stored.state)) {
                // If a node claims it before the commit, this action runs again.
                placed.expected.push(stage_expected(stored)?);
                return Ok(());
            }
            of.enqueued = Some(delivery);
        }
        let (mut stream, mut version) = (id, 1);
        if let Some(of) = record.turn_key().and_then(|id| keys.get_mut(&id)) {
            of.enqueued = Some(delivery);
            (stream, version) = (of.row.id.uuid(), of.row.version() + 1);
        }
        placed.calls.push(PlacedCall { id, stream, version, record });
        Ok(())
    }

    /// The rows of all keys of the steps, and what is stored of their calls. Enqueuing a call creates
    /// the rows of its keys.
    async fn keys_of(&self, steps: &[EnqueueStep]) -> Result<Keys, PlaceError> {
        let (mut wanted, mut created) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                EnqueueStep::Enqueue(call) => {
                    created.extend(call.unique_key().into_iter().chain(call.turn_key()));
                }
                EnqueueStep::Cancel { action, key } => {
                    wanted.push(EnqueuedKey::id_of(KeyUse::Unique, action, key));
                }
            }
        }
        wanted.extend(&created);
        if wanted.is_empty() {
            return Ok(Keys::new());
        }
        let mut rows = self.keys.find_by_ids(&wanted).await?;
        created.retain(|id| rows.iter().all(|row| row.id != *id));
        if !created.is_empty() {
            self.create(created).await?;
            rows = self.keys.find_by_ids(&wanted).await?;
        }
        let deliveries: Vec<_> = rows.iter().map(|row| Id::from_uuid(row.delivery)).collect();
        let stored = self.deliveries.find_by_ids(&deliveries).await?;
        let stored: HashMap<_, _> = stored.into_iter().map(|row| (row.id.uuid(), row)).collect();
        // Two keys may name one delivery: a call can be unique and in turn.
        let key = |row: Stored<EnqueuedKey>| {
            let stored = stored.get(&row.delivery).cloned();
            (row.id, Key { stored, row, enqueued: None, is_cancelled: false })
        };
        Ok(rows.into_iter().map(key).collect())
    }

    /// Creates the rows of keys that were never used, by a commit of its own: that of the action could
    /// not tell a key that somebody else creates meanwhile from a violation of the application's rules.
    async fn create(&self, mut keys: Vec<Id<EnqueuedKey>>) -> Result<(), PlaceError> {
        keys.sort_unstable_by_key(|id| id.uuid());
        keys.dedup();
        for id in keys {
            let (delivery, state) = (Uuid::nil(), EnqueuedKeyState::Active);
            let row = EnqueuedKey { id, delivery, changed: self.now, state };
            match self.keys.add(New::new(row, ())).await {
                Err(WriteError::Database(error))
                    if error.kind() == DbErrorKind::UniqueViolation => {}
                added => {
                    added?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a call waits that has this state, and will run by itself.
fn waits(state: DeliveryState) -> bool {
    match state {
        DeliveryState::New | DeliveryState::Waiting | DeliveryState::Blocked => true,
        DeliveryState::Claimed | DeliveryState::Parked => false,
    }
}

/// Why calls cannot be placed.
pub(super) enum PlaceError {
    Database(DbError),
    Stage(StageError),
}

impl From<ReadError> for PlaceError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Database(error) => Self::Database(error),
            ReadError::Schema(error) => Self::Database(TableError::Schema(error).into()),
            other => Self::Database(DbError::new(DbErrorKind::Decode, other.to_string())),
        }
    }
}

impl From<WriteError> for PlaceError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Database(error) => Self::Database(error),
            WriteError::Schema(error) => Self::Database(TableError::Schema(error).into()),
            other => Self::Database(DbError::new(DbErrorKind::Other, other.to_string())),
        }
    }
}

impl From<StageError> for PlaceError {
    fn from(error: StageError) -> Self {
        Self::Stage(error)
    }
}

impl<E> From<PlaceError> for ExecuteError<E> {
    fn from(error: PlaceError) -> Self {
        match error {
            PlaceError::Database(error) => error.into(),
            PlaceError::Stage(error) => error.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::db::SchemaError;

    #[test]
    fn a_table_that_does_not_match_the_code_is_named_when_it_is_read_and_when_it_is_written() {
        let schema = || SchemaError::Columns {
            model: "Delivery",
            table: "deliveries".to_owned(),
            database: "postgres".to_owned(),
            problems: vec!["`state` is missing".to_owned()],
        };
        for error in [
            PlaceError::from(ReadError::Schema(schema())),
            PlaceError::from(WriteError::Schema(schema())),
        ] {
            let PlaceError::Database(error) = error else { panic!("it is of the database") };
            assert_eq!(error.kind(), DbErrorKind::UndefinedTable);
            assert!(error.to_string().contains("`state` is missing"), "{error}");
        }
    }
}
