//! The sweep: gives deliveries to events that were committed without them. Those are the events
//! that another program wrote, those of a process that did not know a handler yet, and all earlier
//! events when a handler is new.
//!
//! Invariant: an event gets its deliveries and the number of their generation in one transaction,
//! which holds a lock on the event. So it gets each delivery once, whoever sweeps beside.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{NewDelivery, Subscriptions};
use crate::db::eventlog::EVENTS;
use crate::db::{
    ActionId, Arg, CommitBatch, CommitError, Database, DbError, Isolation, Query, Route,
    StageError, Staged, TableError, Transaction, TransactionError, TransactionManager,
    TransactionOptions, resolve,
};
use crate::domain::{ColumnDef, Value, ValueType};

/// For how long before the date of a subscription its events are looked for: ids of events are made
/// before the commit, by the clocks of the processes.
const CLOCKS_APART: Duration = Duration::from_secs(60 * 60);

const HOLDER: &str = "sweep of events";

/// What a sweep has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Swept {
    /// The number of events that got their deliveries.
    pub events: usize,
    /// All events that were committed before the sweep have the deliveries of the subscriptions up
    /// to this generation.
    pub complete: i64,
}

/// Error returned when a sweep fails. What it did before stays.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct SweepError(#[from] TransactionError<DbError>);

/// Gives deliveries to the events that lack some, at most about `most` of them.
pub(crate) async fn sweep(
    database: &Arc<Database>,
    subscriptions: &Subscriptions,
    most: usize,
) -> Result<Swept, SweepError> {
    let all = Lacking::new(subscriptions, subscriptions.generation());
    if all.is_empty() || !all.any(database).await.map_err(TransactionError::Database)? {
        return Ok(Swept { events: 0, complete: subscriptions.generation() });
    }
    let (mut events, mut complete) = (0, 0);
    // Handlers that are there for long do not wait for the earlier events of a new one.
    for until in subscriptions.beginnings() {
        let lacking = Lacking::new(subscriptions, until);
        loop {
            let room = most.saturating_sub(events);
            if room == 0 {
                return Ok(Swept { events, complete });
            }
            let found = page(database, subscriptions, &lacking, room).await?;
            events += found;
            if found < room {
                break;
            }
        }
        complete = until;
    }
    Ok(Swept { events, complete: subscriptions.generation() })
}

/// Sweeps up to `most` events in one transaction. Returns how many.
async fn page(
    database: &Arc<Database>,
    subscriptions: &Subscriptions,
    lacking: &Lacking,
    most: usize,
) -> Result<usize, TransactionError<DbError>> {
    let mut options = TransactionOptions::default();
    if database.driver.capabilities().isolation_levels {
        options = options.isolation(Isolation::ReadCommitted);
    }
    let manager = TransactionManager::new(database.clone());
    let sweeping =
        |transaction| async move { sweep_within(&transaction, subscriptions, lacking, most).await };
    manager.in_transaction_with(options, sweeping).await
}

async fn sweep_within(
    transaction: &Transaction,
    subscriptions: &Subscriptions,
    lacking: &Lacking,
    most: usize,
) -> Result<usize, DbError> {
    let database = transaction.database();
    let mut query = lacking.query(database, COLUMNS, most);
    // Another sweep of the same events waits here, and finds them done.
    if !database.driver.capabilities().single_writer {
        query.sql = format!("{} FOR UPDATE", query.sql).into();
    }
    let found = transaction.fetch(&query).await?;
    if found.is_empty() {
        return Ok(0);
    }
    let mut deliveries = Vec::new();
    for event in &found {
        let Some(Found { event, event_type, generation }) = Found::read(event) else { continue };
        for staged in subscriptions.deliveries(event_type, event, generation) {
            deliveries.push(staged.map_err(misfit)?);
        }
    }
    insert(transaction, deliveries).await?;
    let ids = found.iter().map(|row| row[0].clone()).collect();
    set_generation(transaction, ids, subscriptions.generation()).await?;
    Ok(found.len())
}

async fn insert(transaction: &Transaction, rows: Vec<Staged>) -> Result<(), DbError> {
    let Some(first) = rows.first() else { return Ok(()) };
    let table = transaction.table(first.table).await.map_err(table_error)?;
    let records = rows.into_iter().map(|row| resolve(row, table.clone()).map_err(misfit));
    let batch = CommitBatch {
        action: ActionId(Uuid::nil()),
        changes: Vec::new(),
        expected: Vec::new(),
        records: records.collect::<Result<_, _>>()?,
        fences: Vec::new(),
        traceable: false,
        turns: Vec::new(),
    };
    transaction.write(batch).await.map_err(|error| match error {
        CommitError::Refused(error) => error,
        other => DbError::new(crate::db::DbErrorKind::Other, other.to_string()),
    })
}

async fn set_generation(
    transaction: &Transaction,
    ids: Vec<Value>,
    generation: i64,
) -> Result<(), DbError> {
    let database = transaction.database();
    let events = transaction.table(&EVENTS).await.map_err(table_error)?;
    let syntax = database.driver.syntax();
    let chosen = syntax.any(2, ValueType::Uuid, &events.columns[0]);
    let sql = format!("UPDATE {} SET fanned_out = $1 WHERE {chosen}", syntax.table(&EVENTS));
    let args =
        vec![Arg::One(ValueType::Int, Value::Int(generation)), Arg::Many(ValueType::Uuid, ids)];
    transaction.fetch(&Query { sql: sql.into(), args, columns: Vec::new().into() }).await.map(drop)
}

/// The columns that a sweep reads.
const COLUMNS: &[ColumnDef] = &[
    ColumnDef::new("id", ValueType::Uuid),
    ColumnDef::nullable("model_id", ValueType::Text),
    ColumnDef::nullable("event_type", ValueType::Text),
    ColumnDef::nullable("model_version", ValueType::Int),
    ColumnDef::nullable("event_index", ValueType::Int),
    ColumnDef::new("event_date", ValueType::Timestamp),
    ColumnDef::nullable("fanned_out", ValueType::Int),
];

/// An event without all of its deliveries.
struct Found<'r> {
    event: NewDelivery,
    event_type: &'r str,
    generation: i64,
}

impl<'r> Found<'r> {
    /// `None` for the row of an action without events.
    fn read(row: &'r [Value]) -> Option<Self> {
        let [
            Value::Uuid(event_id),
            Value::Text(model),
            Value::Text(event_type),
            version,
            index,
            Value::Timestamp(event_date),
            generation,
        ] = row
        else {
            return None;
        };
        // Another program may know no versions: then the date of the event stands for it.
        let number =
            |value: &Value| if let Value::Int(number) = value { Some(*number) } else { None };
        let event = NewDelivery {
            event_id: *event_id,
            stream: stream(model),
            model_version: number(version).unwrap_or(event_date.timestamp_micros()),
            event_index: number(index).unwrap_or(0),
            event_date: *event_date,
        };
        Some(Self { event, event_type, generation: number(generation).unwrap_or(0) })
    }
}

/// The stream of a model: its id. A text of another program that is no UUID is hashed.
fn stream(model: &str) -> Uuid {
    Uuid::parse_str(model).unwrap_or_else(|_| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&Sha256::digest(model)[..16]);
        uuid::Builder::from_custom_bytes(bytes).into_uuid()
    })
}

/// The events that lack deliveries of the subscriptions up to a generation.
struct Lacking {
    /// Earlier generations, each with the date before which nobody wants its events.
    generations: Vec<(i64, Option<DateTime<Utc>>)>,
}

impl Lacking {
    fn new(subscriptions: &Subscriptions, until: i64) -> Self {
        let earlier = 0..until;
        let lacking =
            |generation| Some((generation, subscriptions.missing(generation, until).ok()?));
        Self { generations: earlier.filter_map(lacking).collect() }
    }

    fn is_empty(&self) -> bool {
        self.generations.is_empty()
    }

    /// Whether there are such events.
    async fn any(&self, database: &Database) -> Result<bool, DbError> {
        let query = self.query(database, &COLUMNS[..1], 1);
        Ok(!database.fetch(&query, Route::Primary, HOLDER).await?.is_empty())
    }

    fn query(&self, database: &Database, columns: &'static [ColumnDef], most: usize) -> Query {
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        let mut sql = format!(
            "SELECT {} FROM {} WHERE (fanned_out IS NULL",
            names.join(", "),
            database.driver.syntax().table(&EVENTS)
        );
        let mut args = Vec::new();
        for (generation, from) in &self.generations {
            args.push(Arg::One(ValueType::Int, Value::Int(*generation)));
            let _ = write!(sql, " OR (fanned_out = ${}", args.len());
            if let Some(date) = from {
                args.push(Arg::One(ValueType::Uuid, Value::Uuid(first_id(*date - CLOCKS_APART))));
                let _ = write!(sql, " AND id >= ${}", args.len());
            }
            sql.push(')');
        }
        let _ = write!(sql, ") LIMIT {most}");
        Query { sql: sql.into(), args, columns: columns.into() }
    }
}

/// The first id of an event that was made at this time.
fn first_id(date: DateTime<Utc>) -> Uuid {
    let millis = date.timestamp_millis().max(0).unsigned_abs();
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
}

fn table_error(error: TableError) -> DbError {
    match error {
        TableError::Database(error) => error,
        TableError::Schema(error) => DbError::misfit("id", error),
    }
}

fn misfit(_: StageError) -> DbError {
    DbError::new(crate::db::DbErrorKind::Decode, "a delivery does not fit its table")
}
