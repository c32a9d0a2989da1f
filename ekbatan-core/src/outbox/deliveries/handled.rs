//! Deletes events that every handler has handled.
//!
//! Invariants:
//! - An event goes only if it lacks no delivery of a present handler, and no delivery and no
//!   unsettled dead letter of it is left.
//! - A delivery never appears for an event that is gone. Whoever gives an event a delivery later, the
//!   [sweep](super::sweep()) or a replay, locks the row of the event first. The deletion locks it, too,
//!   and only then, in a statement of its own, looks for what is left.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::deadlock::retried;
use super::lacking::{CLOCKS_APART, first_id};
use super::{Delivery, Subscriptions};
use crate::db::eventlog::{DEAD_LETTERS, EVENTS};
use crate::db::{
    Arg, Database, DbError, Isolation, Query, TableInfo, Transaction, TransactionError,
    TransactionManager, TransactionOptions,
};
use crate::domain::{ColumnDef, Entity, Value, ValueType};
use crate::outbox::{CENTURY, StoredId};

/// Where ids of version 7 are not yet. Only ids of other versions, of other programs, are there.
const FUTURE: Duration = Duration::from_secs(24 * 60 * 60);

/// The state of a dead letter that nobody has settled.
const UNSETTLED: &str = "DEAD";

/// Deletes the events that were written more than `age` ago and that no handler needs, and old rows
/// without an event. One transaction looks at `at_once` at most. Returns how many. `now` is the time of
/// the clock that ids are made by.
pub(crate) async fn delete_handled(
    database: &Arc<Database>,
    subscriptions: &Subscriptions,
    age: Duration,
    now: DateTime<Utc>,
    at_once: usize,
) -> Result<u64, TransactionError<DbError>> {
    let limits = Limits { age, at_once };
    let mut deleted = 0;
    for span in spans(subscriptions, age, now) {
        let mut after = StoredId::Uuid(span.after);
        loop {
            let page = retried(|| delete_page(database, &span, &after, limits)).await?;
            deleted += page.deleted;
            match page.last {
                Some(last) if page.found == at_once => after = last,
                _ => break,
            }
        }
    }
    Ok(deleted)
}

/// What a transaction may delete.
#[derive(Clone, Copy)]
struct Limits {
    age: Duration,
    at_once: usize,
}

/// Events of one generation that no present handler lacks, with ids within these bounds.
struct Span {
    generation: Option<i64>,
    after: Uuid,
    before: Option<Uuid>,
    /// Whether only rows without an event go, and those that another reader has marked.
    only_delivered: bool,
}

/// Ids contain the time at which they were made. So the old events of a generation stand beside
/// each other in the index.
fn spans(subscriptions: &Subscriptions, age: Duration, now: DateTime<Utc>) -> Vec<Span> {
    let old = first_id(now - age.min(CENTURY) + CLOCKS_APART);
    let generation = subscriptions.generation();
    let mut spans = Vec::new();
    let mut add = |generation, from: Option<Uuid>, only_delivered| {
        let before = from.map_or(old, |from| from.min(old));
        let ended = Span { generation, after: Uuid::nil(), before: Some(before), only_delivered };
        spans.push(ended);
        if from.is_none() {
            let after = first_id(now + FUTURE);
            spans.push(Span { generation, after, before: None, only_delivered });
        }
    };
    // Without a handler of events, somebody else may read them.
    let only_delivered = !subscriptions.want_events();
    if only_delivered {
        add(None, None, true);
    }
    for of in 0..=generation {
        match subscriptions.missing(of, generation) {
            Err(()) => add(Some(of), None, only_delivered),
            // A sweep gives deliveries to the later ones.
            Ok(Some(date)) => add(Some(of), Some(first_id(date - CLOCKS_APART)), false),
            Ok(None) => {}
        }
    }
    spans
}

/// What became of a page.
struct Page {
    last: Option<StoredId>,
    found: usize,
    deleted: u64,
}

async fn delete_page(
    database: &Arc<Database>,
    span: &Span,
    after: &StoredId,
    limits: Limits,
) -> Result<Page, TransactionError<DbError>> {
    let mut options = TransactionOptions::default();
    // Each statement has to see what was committed before it.
    if database.driver.capabilities().isolation_levels {
        options = options.isolation(Isolation::ReadCommitted);
    }
    let manager = TransactionManager::new(database.clone());
    let deleting =
        |transaction| async move { delete_within(&transaction, span, after, limits).await };
    manager.in_transaction_with(options, deleting).await
}

async fn delete_within(
    transaction: &Transaction,
    span: &Span,
    after: &StoredId,
    limits: Limits,
) -> Result<Page, DbError> {
    let events = transaction.table(&EVENTS).await?;
    let rows =
        transaction.fetch(&lock(transaction.database(), &events, span, after, limits)).await?;
    let found: Vec<StoredId> = rows.iter().filter_map(|row| StoredId::read(row.first()?)).collect();
    let (last, count) = (found.last().cloned(), rows.len());
    // The sweep has passed over those without a UUID. They stay until their ids are corrected.
    let mut done: Vec<Uuid> = found.iter().filter_map(StoredId::uuid).collect();
    if done.is_empty() {
        return Ok(Page { last, found: count, deleted: 0 });
    }
    let needed = ids(transaction, left(transaction, &done).await?).await?;
    done.retain(|id| !needed.contains(id));
    let deleted = done.len() as u64;
    if deleted > 0 {
        let syntax = transaction.database().driver.syntax();
        let chosen = syntax.any(1, ValueType::Uuid, &events.columns[0]);
        let sql = format!("DELETE FROM {} WHERE {chosen}", syntax.table(&EVENTS));
        let args = vec![list(&done)];
        transaction.fetch(&Query { sql: sql.into(), args, columns: Vec::new().into() }).await?;
    }
    Ok(Page { last, found: count, deleted })
}

/// Locks the next events. Rows that others have locked are skipped, so this waits for nobody.
fn lock(
    database: &Database,
    events: &TableInfo,
    span: &Span,
    after: &StoredId,
    limits: Limits,
) -> Query {
    let syntax = database.driver.syntax();
    let mut args = vec![after.arg()];
    let mut sql = format!("SELECT id FROM {} WHERE id > $1", syntax.table(&EVENTS));
    match span.generation {
        Some(generation) => {
            args.push(Arg::One(ValueType::Int, Value::Int(generation)));
            sql += &format!(" AND fanned_out = ${}", args.len());
        }
        None => sql += " AND fanned_out IS NULL",
    }
    match span.before {
        Some(before) => {
            args.push(uuid(before));
            sql += &format!(" AND id < ${}", args.len());
        }
        None => sql += StoredId::without_blobs(database),
    }
    if span.only_delivered {
        sql += " AND (delivered OR event_type IS NULL)";
    }
    let old = syntax.recorded_before(limits.age.min(CENTURY).as_secs());
    sql += &format!(" AND {old} ORDER BY id LIMIT {}", limits.at_once);
    if !database.driver.capabilities().single_writer {
        sql += " FOR UPDATE SKIP LOCKED";
    }
    Query { sql: sql.into(), args, columns: vec![StoredId::column(events)].into() }
}

/// The events, of these, that have a delivery or an unsettled dead letter.
async fn left(transaction: &Transaction, events: &[Uuid]) -> Result<Query, DbError> {
    let syntax = transaction.database().driver.syntax();
    let deliveries = transaction.table(Delivery::TABLE).await?;
    let event_id = deliveries.column("event_id")?;
    // Both tables declare the column alike.
    let among = |n| syntax.any(n, ValueType::Uuid, event_id);
    // Dead letters have an index on the event, which leads to fewer rows than that on the state.
    // The id of a delivery begins as that of its event does, so no index on the event is needed.
    let (least, greatest) = Delivery::ids_of(events);
    let sql = format!(
        "SELECT event_id FROM {} WHERE id >= $1 AND id <= $2 AND {} \
         UNION ALL SELECT event_id FROM {} WHERE {} AND COALESCE(state, '') = '{UNSETTLED}'",
        syntax.table(Delivery::TABLE),
        among(3),
        syntax.table(&DEAD_LETTERS),
        among(4),
    );
    let args = vec![uuid(least), uuid(greatest), list(events), list(events)];
    Ok(Query { sql: sql.into(), args, columns: ID.into() })
}

/// Locks the rows of events, so that they are not deleted before the transaction ends. Returns those
/// that are there.
pub(crate) async fn keep_events(
    transaction: &Transaction,
    events: Vec<Uuid>,
) -> Result<HashSet<Uuid>, DbError> {
    let database = transaction.database();
    let syntax = database.driver.syntax();
    let table = transaction.table(&EVENTS).await?;
    let chosen = syntax.any(1, ValueType::Uuid, &table.columns[0]);
    let mut sql = format!("SELECT id FROM {} WHERE {chosen} ORDER BY id", syntax.table(&EVENTS));
    if !database.driver.capabilities().single_writer {
        sql += " FOR UPDATE";
    }
    let query = Query { sql: sql.into(), args: vec![list(&events)], columns: ID.into() };
    Ok(ids(transaction, query).await?.into_iter().collect())
}

const ID: &[ColumnDef] = &[ColumnDef::new("id", ValueType::Uuid)];

async fn ids(transaction: &Transaction, query: Query) -> Result<Vec<Uuid>, DbError> {
    let rows = transaction.fetch(&query).await?;
    let id = |row: Vec<Value>| match row[..] {
        [Value::Uuid(id)] => Some(id),
        _ => None,
    };
    Ok(rows.into_iter().filter_map(id).collect())
}

fn uuid(id: Uuid) -> Arg {
    Arg::One(ValueType::Uuid, Value::Uuid(id))
}

fn list(ids: &[Uuid]) -> Arg {
    Arg::Many(ValueType::Uuid, ids.iter().copied().map(Value::Uuid).collect())
}
