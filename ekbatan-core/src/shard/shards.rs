//! All databases by shard, and the shard of every row.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt};
use uuid::Uuid;

use super::sharding::Placement;
use super::slot::Slot;
use super::{Place, ShardError};
use crate::config::UnknownShard;
use crate::db::Database;
use crate::domain::{Entity, EntityId, ShardIdentifier, Table, TableKey, Value, shard_of};

/// How many shards are queried concurrently. Each query uses a connection of its own shard, so this
/// bounds the work of this process, not of a database.
const AT_ONCE: usize = 16;

/// Every database, in the order in which shards are visited.
#[derive(Clone)]
pub(crate) struct Shards {
    pub(super) databases: BTreeMap<ShardIdentifier, Arc<Database>>,
    pub(super) default: Arc<Database>,
    pub(super) unknown: UnknownShard,
    /// The placement rules that the application registered, by table.
    pub(super) placements: HashMap<TableKey, Arc<dyn Placement>>,
    pub(super) slots: BTreeMap<ShardIdentifier, Vec<Slot>>,
}

impl Shards {
    /// One database, which has every row.
    pub(crate) fn only(database: &Arc<Database>) -> Self {
        Self {
            databases: BTreeMap::from([(database.shard, database.clone())]),
            default: database.clone(),
            unknown: UnknownShard::DefaultShard,
            placements: HashMap::new(),
            slots: BTreeMap::new(),
        }
    }

    /// The database of rows that name no shard.
    pub(crate) fn default(&self) -> &Arc<Database> {
        &self.default
    }

    /// All databases, ordered by shard.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = &Arc<Database>> {
        self.databases.values()
    }

    /// Whether there is only one database.
    pub(crate) fn is_single(&self) -> bool {
        self.databases.len() == 1
    }

    /// The database of a shard. An unknown shard is an error or the default shard, as configured.
    pub(crate) fn database(&self, shard: ShardIdentifier) -> Result<&Arc<Database>, ShardError> {
        match (self.databases.get(&shard), self.unknown) {
            (Some(database), _) => Ok(database),
            (None, UnknownShard::DefaultShard) => Ok(&self.default),
            (None, _) => {
                Err(ShardError::Unknown { shard, known: self.databases.keys().copied().collect() })
            }
        }
    }

    /// The database of the row with this id; `None` if there is no such row: a lookup does not
    /// know it, or the id names no shard of this configuration. Clients send such ids.
    pub(crate) async fn of_id<T: Entity>(
        &self,
        id: T::Id,
    ) -> Result<Option<&Arc<Database>>, ShardError> {
        let id = id.uuid();
        let place = match self.placements.get(&T::TABLE.key()) {
            Some(placement) => placement.of_id(id)?,
            None => match of_kind(T::Id::CARRIES_SHARD, T::TABLE.model, id) {
                Err(error) => return Ok(no_row::<T, _>(id, error)),
                Ok(place) => place,
            },
        };
        match place {
            Place::Default => Ok(Some(&self.default)),
            Place::On(shard) => self.database(shard).map(Some),
            Place::InId(shard) => {
                Ok(self.database(shard).map_or_else(|error| no_row::<T, _>(id, error), Some))
            }
            Place::Ask(answer) => match answer.await? {
                Some(shard) => self.database(shard).map(Some),
                None => Ok(None),
            },
        }
    }

    /// The database that this row is written to. `carries_shard` tells whether ids of the
    /// table name their shard.
    pub(crate) fn of_row(
        &self,
        table: &Table,
        carries_shard: bool,
        id: Uuid,
        values: &[Value],
    ) -> Result<&Arc<Database>, ShardError> {
        let place = match self.placements.get(&table.key()) {
            Some(placement) => placement.of_row(id, values)?,
            None => of_kind(carries_shard, table.model, id)?,
        };
        match place {
            Place::On(shard) | Place::InId(shard) => self.database(shard),
            // Rows are never placed by a lookup.
            Place::Default | Place::Ask(_) => Ok(&self.default),
        }
    }

    /// The databases that a read by condition queries.
    pub(crate) fn of_table<T: Entity>(&self) -> Vec<&Arc<Database>> {
        let spreads = match self.placements.get(&T::TABLE.key()) {
            Some(placement) => placement.spreads(),
            None => T::Id::CARRIES_SHARD,
        };
        if spreads { self.all().collect() } else { vec![&self.default] }
    }
}

/// Runs all futures, [`AT_ONCE`] of them concurrently, and returns their outputs in order. A slow one
/// does not delay the others.
pub(crate) async fn visit<F: Future>(asked: Vec<F>) -> Vec<F::Output> {
    let numbered = asked.into_iter().enumerate().map(|(n, asked)| asked.map(move |a| (n, a)));
    let mut answers: Vec<(usize, F::Output)> =
        stream::iter(numbered).buffer_unordered(AT_ONCE).collect().await;
    answers.sort_unstable_by_key(|(n, _)| *n);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

/// The caller may be a client, whom the configuration does not concern; its operator reads the log.
fn no_row<T: Entity, R>(id: Uuid, error: ShardError) -> Option<R> {
    tracing::warn!(model = T::TABLE.model, %id, %error, "an id was read that no row has");
    None
}

fn of_kind(carries_shard: bool, model: &'static str, id: Uuid) -> Result<Place, ShardError> {
    match (carries_shard, shard_of(id)) {
        (false, _) => Ok(Place::Default),
        (true, Some(shard)) => Ok(Place::InId(shard)),
        (true, None) => Err(ShardError::NoShardInId { model, id }),
    }
}
