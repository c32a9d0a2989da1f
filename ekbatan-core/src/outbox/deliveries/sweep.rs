//! The sweep: gives deliveries to events that were committed without them. Those are the events
//! that another program wrote, those of a process that did not know a handler yet, and all earlier
//! events when a handler is new.
//!
//! Invariant: an event gets its deliveries and the number of their generation in one transaction,
//! which holds a lock on the event. So it gets each delivery once, also if several nodes sweep.

use std::collections::HashSet;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::deadlock::retried;
use super::lacking::Lacking;
use super::{Delivery, EventKind, NewDelivery, Subscriptions};
use crate::db::eventlog::EVENTS;
use crate::db::{
    ActionId, Arg, CommitBatch, CommitError, Database, DbError, DbErrorKind, Isolation, Query,
    Rows, StageError, Staged, TableInfo, Transaction, TransactionError, TransactionManager,
    TransactionOptions, resolve,
};
use crate::domain::{ColumnDef, Entity, Value, ValueType};
use crate::outbox::Priority;
use crate::outbox::stored_id::{are_texts, uuid_of};

/// How many events of other sweeps a sweep looks past. One that stands still has locked a page.
const MOST_LOCKED: usize = 10_000;

/// How many deliveries are looked for with one statement.
const AT_ONCE: usize = 1_000;

const ID: &[ColumnDef] = &[ColumnDef::new("id", ValueType::Uuid)];

/// What a sweep has found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Swept {
    /// The number of events that got their deliveries.
    pub events: usize,
    /// All events that were committed before the sweep have the deliveries of the subscriptions up
    /// to this generation, but for those of `elsewhere`.
    pub complete: i64,
    /// The streams of events that another sweep has locked, which may stand still.
    pub elsewhere: HashSet<Uuid>,
}

/// Whether a sweep has anything to do.
pub(crate) async fn is_sweep_due(
    database: &Database,
    subscriptions: &Subscriptions,
) -> Result<bool, DbError> {
    let all = Lacking::new(subscriptions, subscriptions.generation());
    Ok(!subscriptions.is_empty() && all.any(database).await?)
}

/// Gives deliveries to the events that lack some, at most about `most` of them. What it did before it fails
/// stays.
pub(crate) async fn sweep(
    database: &Arc<Database>,
    subscriptions: &Subscriptions,
    most: usize,
) -> Result<Swept, TransactionError<DbError>> {
    let present = subscriptions.generation();
    if !is_sweep_due(database, subscriptions).await.map_err(TransactionError::Database)? {
        return Ok(Swept { complete: present, ..Swept::default() });
    }
    let all = Lacking::new(subscriptions, present);
    let mut swept = Swept::default();
    let mut leaves_out_existing = subscriptions.has_retired();
    // Handlers that are there for long do not wait for the earlier events of a new one.
    for until in subscriptions.beginnings() {
        let lacking = Lacking::new(subscriptions, until);
        let before = swept.events;
        // How many events are looked at beyond those that are swept: somebody else sweeps them.
        let mut locked = 0;
        loop {
            let room = most.saturating_sub(swept.events);
            if room == 0 || locked > MOST_LOCKED {
                return Ok(swept);
            }
            let size = room + locked;
            let sweeping = || page(database, subscriptions, &lacking, size, leaves_out_existing);
            let found = retried(sweeping).await;
            // An operator may have set an event back that has a delivery still.
            if !leaves_out_existing && found.as_ref().is_err_and(is_duplicate) {
                leaves_out_existing = true;
                continue;
            }
            let found = found?;
            swept.events += found.swept;
            swept.elsewhere.extend(found.elsewhere);
            if found.lacking < size {
                break;
            }
            locked = found.lacking - found.swept;
        }
        swept.complete = until;
        // Mostly the first one that sweeps anything leaves nothing to the others.
        let may_be_done = until < present && swept.events > before;
        if may_be_done && !all.any(database).await.map_err(TransactionError::Database)? {
            swept.complete = present;
            break;
        }
    }
    Ok(swept)
}

/// Whether a delivery is there already.
fn is_duplicate(error: &TransactionError<DbError>) -> bool {
    matches!(
        error,
        TransactionError::Inner(error) | TransactionError::Database(error)
            if error.kind() == DbErrorKind::UniqueViolation
    )
}

/// What became of a page.
#[derive(Default)]
struct Page {
    /// How many events lacked deliveries.
    lacking: usize,
    /// How many of them got some. The others were swept or deleted by somebody else meanwhile.
    swept: usize,
    /// The streams of those that somebody else is sweeping.
    elsewhere: Vec<Uuid>,
}

/// Sweeps up to `most` events in one transaction.
async fn page(
    database: &Arc<Database>,
    subscriptions: &Subscriptions,
    lacking: &Lacking,
    most: usize,
    leaves_out_existing: bool,
) -> Result<Page, TransactionError<DbError>> {
    let mut options = TransactionOptions::default();
    if database.driver.capabilities().isolation_levels {
        options = options.isolation(Isolation::ReadCommitted);
    }
    let manager = TransactionManager::new(database.clone());
    let sweeping = |transaction| async move {
        sweep_within(&transaction, subscriptions, lacking, most, leaves_out_existing).await
    };
    manager.in_transaction_with(options, sweeping).await
}

async fn sweep_within(
    transaction: &Transaction,
    subscriptions: &Subscriptions,
    lacking: &Lacking,
    most: usize,
    leaves_out_existing: bool,
) -> Result<Page, DbError> {
    let database = transaction.database();
    let events = transaction.table(&EVENTS).await?;
    let Listed { ids, others, passed } = if are_texts(&events.columns[0]) {
        pass_other_ids(transaction, subscriptions, lacking, &events, most).await?
    } else {
        Listed { ids: lacking.ids(transaction, most).await?, others: 0, passed: 0 }
    };
    let count = ids.len() + others;
    if ids.is_empty() {
        return Ok(Page { lacking: count, swept: passed, elsewhere: Vec::new() });
    }
    // Those that another sweep has locked are passed over: its process may stand still.
    let found = match transaction.fetch(&lacking.locked(database, &events, ids.clone())).await {
        Err(error) if error.kind() == DbErrorKind::Decode => {
            pass_unreadable(transaction, subscriptions, lacking, &events, &ids).await?
        }
        found => found?,
    };
    let locked: HashSet<Uuid> = found.iter().filter_map(|row| uuid(row.first()?)).collect();
    let is_other = |id: &Value| uuid(id).is_some_and(|id| !locked.contains(&id));
    let others: Vec<Value> = ids.into_iter().filter(is_other).collect();
    let elsewhere = elsewhere(transaction, lacking, &events, others).await?;
    let mut deliveries = Vec::new();
    for event in &found {
        let Some(Found { event, kind, generation }) = Found::read(event) else {
            report_unusable(event);
            continue;
        };
        for staged in subscriptions.deliveries(kind, event, generation) {
            deliveries.push(staged.map_err(misfit)?);
        }
    }
    if leaves_out_existing {
        leave_out_existing(transaction, &mut deliveries).await?;
    }
    insert(transaction, deliveries).await?;
    let ids = found.iter().filter_map(|row| row.first().cloned()).collect();
    set_generation(transaction, &events, ids, subscriptions.generation()).await?;
    Ok(Page { lacking: count, swept: found.len() + passed, elsewhere })
}

fn uuid(value: &Value) -> Option<Uuid> {
    if let Value::Uuid(id) = value { Some(*id) } else { None }
}

/// The streams of those of these events that lack deliveries, as it is committed.
async fn elsewhere(
    transaction: &Transaction,
    lacking: &Lacking,
    events: &TableInfo,
    ids: Vec<Value>,
) -> Result<Vec<Uuid>, DbError> {
    if ids.is_empty() || transaction.database().driver.capabilities().single_writer {
        return Ok(Vec::new());
    }
    let rows = transaction.fetch(&lacking.models(transaction.database(), events, ids)).await?;
    let stream = |row: &Vec<Value>| match row.as_slice() {
        [Value::Text(model)] => Some(stream_of(model)),
        _ => None,
    };
    Ok(rows.iter().filter_map(stream).collect())
}

/// The events that lack deliveries.
struct Listed {
    ids: Vec<Value>,
    /// How many others have ids that are not found again.
    others: usize,
    /// How many of those are passed over from now on.
    passed: usize,
}

/// The ids of events, where they are texts. Another program may have written some that are no UUIDs, or that
/// are spelt otherwise than they are looked for. Those events get no deliveries: otherwise they would stop
/// the sweep of all others.
async fn pass_other_ids(
    transaction: &Transaction,
    subscriptions: &Subscriptions,
    lacking: &Lacking,
    events: &TableInfo,
    most: usize,
) -> Result<Listed, DbError> {
    let database = transaction.database();
    let (mut ids, mut others) = (Vec::new(), Vec::new());
    for id in lacking.texts(transaction, most).await? {
        let Value::Bytes(bytes) = id else { continue };
        match uuid_of(&bytes) {
            Some(id) => ids.push(Value::Uuid(id)),
            None => others.push(bytes),
        }
    }
    if others.is_empty() {
        return Ok(Listed { ids, others: 0, passed: 0 });
    }
    let listed = others.len();
    let texts_of = |others: &[Vec<u8>]| {
        let texts = others.iter().filter_map(|id| String::from_utf8(id.clone()).ok());
        Arg::Many(ValueType::Text, texts.map(Value::Text).collect())
    };
    let has_one_writer = database.driver.capabilities().single_writer;
    if !has_one_writer {
        // Those that another sweep has locked are left to it: its process may stand still.
        let locked = lacking.locked_texts(database, events, texts_of(&others));
        let locked = transaction.fetch(&locked).await?.into_iter().flatten();
        others = locked
            .filter_map(|id| if let Value::Bytes(id) = id { Some(id) } else { None })
            .collect();
    }
    for id in &others {
        let id = String::from_utf8_lossy(id);
        tracing::error!(event = %id, "the id of an event is no UUID in small letters with hyphens; no handler gets the event before its `id` is corrected and its `fanned_out` is NULL again");
    }
    let generation = subscriptions.generation();
    let passed = others.len();
    let texts = texts_of(&others);
    set_generation_of(transaction, events, ValueType::Text, texts, generation).await?;
    // Only there a column of texts holds bytes.
    if has_one_writer {
        let bytes = Arg::Many(ValueType::Bytes, others.into_iter().map(Value::Bytes).collect());
        set_generation_of(transaction, events, ValueType::Bytes, bytes, generation).await?;
    }
    Ok(Listed { ids, others: listed, passed })
}

/// Reads events one by one, where a column may hold anything. Those that cannot be read get no
/// deliveries: otherwise they would stop the sweep of all others.
async fn pass_unreadable(
    transaction: &Transaction,
    subscriptions: &Subscriptions,
    lacking: &Lacking,
    events: &TableInfo,
    ids: &[Value],
) -> Result<Rows, DbError> {
    let mut readable = Rows::new();
    for id in ids {
        let one = lacking.locked(transaction.database(), events, vec![id.clone()]);
        match transaction.fetch(&one).await {
            Err(error) if error.kind() == DbErrorKind::Decode => {
                tracing::error!(event = ?id, %error, "an event cannot be read; no handler gets it");
                let generation = subscriptions.generation();
                set_generation(transaction, events, vec![id.clone()], generation).await?;
            }
            rows => readable.extend(rows?),
        }
    }
    Ok(readable)
}

/// Leaves out deliveries that are there. A process that did not know that a handler was retired may have
/// inserted some, or somebody has set an event back, and one of them must not stop the sweep of all events.
async fn leave_out_existing(
    transaction: &Transaction,
    rows: &mut Vec<Staged>,
) -> Result<(), DbError> {
    let (mut existing, syntax) = (HashSet::new(), transaction.database().driver.syntax());
    let table = transaction.table(Delivery::TABLE).await?;
    let chosen = syntax.any(1, ValueType::Uuid, table.column("id")?);
    let sql: Arc<str> =
        format!("SELECT id FROM {} WHERE {chosen}", syntax.table(Delivery::TABLE)).into();
    for rows in rows.chunks(AT_ONCE) {
        let ids = rows.iter().map(|row| Value::Uuid(row.id)).collect();
        let args = vec![Arg::Many(ValueType::Uuid, ids)];
        let query = Query { sql: sql.clone(), args, columns: ID.into() };
        let found = transaction.fetch(&query).await?;
        existing.extend(found.iter().filter_map(|row| uuid(row.first()?)));
    }
    rows.retain(|row| !existing.contains(&row.id));
    Ok(())
}

async fn insert(transaction: &Transaction, rows: Vec<Staged>) -> Result<(), DbError> {
    let Some(first) = rows.first() else { return Ok(()) };
    let table = transaction.table(first.table).await?;
    let records = rows.into_iter().map(|row| resolve(row, table.clone()).map_err(misfit));
    let records = records.collect::<Result<Vec<_>, _>>()?;
    // Together they may be more than a commit may have.
    for records in transaction.database().sizes().parts(records) {
        let batch = CommitBatch {
            action: ActionId(Uuid::nil()),
            changes: Vec::new(),
            expected: Vec::new(),
            records,
            fences: Vec::new(),
            traceable: false,
            turns: Vec::new(),
        };
        transaction.write(batch).await.map_err(|error| match error {
            CommitError::Refused(error) => error,
            other => DbError::new(DbErrorKind::Other, other.to_string()),
        })?;
    }
    Ok(())
}

async fn set_generation(
    transaction: &Transaction,
    events: &TableInfo,
    ids: Vec<Value>,
    generation: i64,
) -> Result<(), DbError> {
    let ids = Arg::Many(ValueType::Uuid, ids);
    set_generation_of(transaction, events, ValueType::Uuid, ids, generation).await
}

/// Sets the generation of events whose ids are given as values of this type.
async fn set_generation_of(
    transaction: &Transaction,
    events: &TableInfo,
    ty: ValueType,
    ids: Arg,
    generation: i64,
) -> Result<(), DbError> {
    let syntax = transaction.database().driver.syntax();
    let chosen = syntax.any(2, ty, &events.columns[0]);
    let sql = format!("UPDATE {} SET fanned_out = $1 WHERE {chosen}", syntax.table(&EVENTS));
    let args = vec![Arg::One(ValueType::Int, Value::Int(generation)), ids];
    transaction.fetch(&Query { sql: sql.into(), args, columns: Vec::new().into() }).await.map(drop)
}

/// An event without all of its deliveries.
struct Found<'r> {
    event: NewDelivery,
    kind: EventKind<'r>,
    generation: i64,
}

impl<'r> Found<'r> {
    /// `None` for the row of an action without events.
    fn read(row: &'r [Value]) -> Option<Self> {
        let [
            Value::Uuid(event_id),
            Value::Text(model),
            model_type,
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
            stream: stream_of(model),
            model_version: number(version).unwrap_or(event_date.timestamp_micros()),
            event_index: number(index).unwrap_or(0),
            event_date: *event_date,
            is_delayed: false,
            priority: Priority::Normal,
        };
        let model_type = if let Value::Text(name) = model_type { name } else { "" };
        let kind = EventKind { model: model_type, name: event_type };
        Some(Self { event, kind, generation: number(generation).unwrap_or(0) })
    }
}

/// Says so if a row is an event that no handler can get.
fn report_unusable(row: &[Value]) {
    if let [Value::Uuid(id), _, _, Value::Text(_), ..] = row {
        tracing::error!(event = %id, "an event has no `model_id` or no `event_date`; no handler gets it before both are there and its `fanned_out` is NULL again");
    }
}

/// The stream of a model: its id. A text of another program that is no UUID is hashed.
pub fn stream_of(model: &str) -> Uuid {
    Uuid::parse_str(model).unwrap_or_else(|_| {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&Sha256::digest(model)[..16]);
        // MariaDB refuses some UUIDs of later versions.
        uuid::Builder::from_bytes(bytes).with_version(uuid::Version::Sha1).into_uuid()
    })
}

fn misfit(_: StageError) -> DbError {
    DbError::new(DbErrorKind::Decode, "a delivery does not fit its table")
}
