//! The events that lack deliveries of the subscriptions up to a generation.
//!
//! Invariant: each question reads a part of the index on the generation and the id for each of some
//! ranges of generations, and no more of it than it returns. It is asked in every round of every
//! node, however many events are stored.

use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Subscriptions;
use crate::db::eventlog::EVENTS;
use crate::db::{Arg, Database, DbError, DbErrorKind, Query, TableInfo, Transaction};
use crate::domain::{ColumnDef, Value, ValueType};

/// For how long before the date of a subscription its events are looked for: ids of events are made
/// before the commit, by the clocks of the processes.
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(60 * 60);

const HOLDER: &str = "sweep of events";

const MODEL_ID: ColumnDef = ColumnDef::nullable("model_id", ValueType::Text);

/// The columns that a sweep reads.
const COLUMNS: &[ColumnDef] = &[
    ColumnDef::new("id", ValueType::Uuid),
    MODEL_ID,
    ColumnDef::nullable("model_type", ValueType::Text),
    ColumnDef::nullable("event_type", ValueType::Text),
    ColumnDef::nullable("model_version", ValueType::Int),
    ColumnDef::nullable("event_index", ValueType::Int),
    ColumnDef::new("event_date", ValueType::Timestamp),
    ColumnDef::nullable("fanned_out", ValueType::Int),
];

const ID: &[ColumnDef] = &[ColumnDef::new("id", ValueType::Uuid)];

const ID_AS_BYTES: &[ColumnDef] = &[ColumnDef::new("id", ValueType::Bytes)];

/// How many ranges a statement looks at: SQLite takes no more than 500 parts of a union.
const AT_ONCE: usize = 400;

/// The events that lack deliveries.
pub(super) struct Lacking {
    ranges: Vec<Range>,
    until: i64,
}

/// Events of some generations.
enum Range {
    /// Those that have no generation yet.
    New,
    /// Those of the generations before this one. Somebody wants all of them.
    Before(i64),
    /// Those of one generation. Nobody wants them from before this date.
    Since(i64, DateTime<Utc>),
}

impl Lacking {
    pub(super) fn new(subscriptions: &Subscriptions, until: i64) -> Self {
        let (mut whole, mut since) = (0, Vec::new());
        for generation in 0..until {
            match subscriptions.missing(generation, until) {
                // A handler that wants all events of a generation wants all earlier ones, too.
                Ok(None) => whole = generation + 1,
                Ok(Some(date)) => since.push(Range::Since(generation, date)),
                Err(()) => {}
            }
        }
        let mut ranges = vec![Range::New];
        ranges.extend((whole > 0).then_some(Range::Before(whole)));
        ranges.append(&mut since);
        Self { ranges, until }
    }

    /// Whether there are such events.
    pub(super) async fn any(&self, database: &Database) -> Result<bool, DbError> {
        for ranges in self.ranges.chunks(AT_ONCE) {
            let found = match database.look(&ids_in(database, ranges, ID, 1), HOLDER).await {
                // Its id is no UUID.
                Err(error) if error.kind() == DbErrorKind::Decode => return Ok(true),
                found => found?,
            };
            if !found.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The ids of up to `most` of them, as bytes: where UUIDs are texts, other programs may write any text.
    pub(super) async fn texts(
        &self,
        transaction: &Transaction,
        most: usize,
    ) -> Result<Vec<Value>, DbError> {
        self.ids_as(transaction, ID_AS_BYTES, most).await
    }

    /// The ids of up to `most` of them.
    pub(super) async fn ids(
        &self,
        transaction: &Transaction,
        most: usize,
    ) -> Result<Vec<Value>, DbError> {
        self.ids_as(transaction, ID, most).await
    }

    async fn ids_as(
        &self,
        transaction: &Transaction,
        column: &'static [ColumnDef],
        most: usize,
    ) -> Result<Vec<Value>, DbError> {
        let mut found = Vec::new();
        for ranges in self.ranges.chunks(AT_ONCE) {
            let query = ids_in(transaction.database(), ranges, column, most - found.len());
            found.extend(transaction.fetch(&query).await?.into_iter().flatten());
            if found.len() >= most {
                break;
            }
        }
        Ok(found)
    }

    /// The models of those of these events that lack deliveries still. Nothing else is read of them: another
    /// program may have written any column.
    pub(super) fn models(&self, database: &Database, events: &TableInfo, ids: Vec<Value>) -> Query {
        self.among(database, events, ids, &[MODEL_ID])
    }

    /// These columns of those of these events that lack deliveries still.
    fn among(
        &self,
        database: &Database,
        events: &TableInfo,
        ids: Vec<Value>,
        columns: &'static [ColumnDef],
    ) -> Query {
        let syntax = database.driver.syntax();
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        let sql = format!(
            "SELECT {} FROM {} WHERE (fanned_out IS NULL OR fanned_out < $1) AND {}",
            names.join(", "),
            syntax.table(&EVENTS),
            syntax.any(2, ValueType::Uuid, &events.columns[0]),
        );
        let args = vec![int(self.until), Arg::Many(ValueType::Uuid, ids)];
        Query { sql: sql.into(), args, columns: columns.into() }
    }

    /// The ids of these that lack deliveries still, locked; without those that somebody else has locked.
    pub(super) fn locked_texts(
        &self,
        database: &Database,
        events: &TableInfo,
        texts: Arg,
    ) -> Query {
        let syntax = database.driver.syntax();
        let sql = format!(
            "SELECT id FROM {} WHERE (fanned_out IS NULL OR fanned_out < $1) AND {} FOR UPDATE SKIP LOCKED",
            syntax.table(&EVENTS),
            syntax.any(2, ValueType::Text, &events.columns[0]),
        );
        let args = vec![int(self.until), texts];
        Query { sql: sql.into(), args, columns: ID_AS_BYTES.into() }
    }

    /// Those of these events that lack deliveries still, locked; without those that somebody else has locked.
    pub(super) fn locked(&self, database: &Database, events: &TableInfo, ids: Vec<Value>) -> Query {
        let mut query = self.among(database, events, ids, COLUMNS);
        if !database.driver.capabilities().single_writer {
            query.sql = format!("{} FOR UPDATE SKIP LOCKED", query.sql).into();
        }
        query
    }
}

/// The ids of up to `most` events in these ranges.
fn ids_in(
    database: &Database,
    ranges: &[Range],
    column: &'static [ColumnDef],
    most: usize,
) -> Query {
    let syntax = database.driver.syntax();
    let table = format!("{}{}", syntax.table(&EVENTS), syntax.by_generation());
    // SQLite takes rows without a primary key, and sorts them first. Nobody can be told of such an event.
    let has_id =
        if database.driver.capabilities().single_writer { " AND id IS NOT NULL" } else { "" };
    let mut args = Vec::new();
    let parts: Vec<String> = ranges
        .iter()
        .map(|range| {
            let condition = match range {
                Range::New => format!("fanned_out IS NULL{has_id}"),
                Range::Before(generation) => {
                    args.push(int(*generation));
                    format!("fanned_out < ${}{has_id}", args.len())
                }
                Range::Since(generation, date) => {
                    let first = Value::Uuid(first_id(*date - CLOCKS_APART));
                    args.extend([int(*generation), Arg::One(ValueType::Uuid, first)]);
                    syntax.of_generation(args.len() - 1, args.len())
                }
            };
            // Ordered as the index is: without that, a server may read all events.
            format!(
                "SELECT id FROM (SELECT id FROM {table} WHERE {condition} \
                 ORDER BY fanned_out, id LIMIT {most}) AS lacking"
            )
        })
        .collect();
    let sql = format!("{} LIMIT {most}", parts.join(" UNION ALL "));
    Query { sql: sql.into(), args, columns: column.into() }
}

fn int(number: i64) -> Arg {
    Arg::One(ValueType::Int, Value::Int(number))
}

/// The first id of an event that was made at this time.
pub(super) fn first_id(date: DateTime<Utc>) -> Uuid {
    let millis = date.timestamp_millis().max(0).unsigned_abs();
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
}
