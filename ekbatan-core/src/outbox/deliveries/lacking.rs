//! The events that lack deliveries of the subscriptions up to a generation.
//!
//! Invariant: each question reads a part of the index on the generation and the id for each of a few
//! ranges of generations, and no more of it than it returns. It is asked in every round of every
//! node, however many events are stored.

use std::fmt::Write as _;
use std::time::Duration;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::Subscriptions;
use crate::db::eventlog::EVENTS;
use crate::db::{Arg, Database, DbError, DbErrorKind, Query, TableInfo};
use crate::domain::{ColumnDef, Value, ValueType};

/// For how long before the date of a subscription its events are looked for: ids of events are made
/// before the commit, by the clocks of the processes.
pub(super) const CLOCKS_APART: Duration = Duration::from_secs(60 * 60);

const HOLDER: &str = "sweep of events";

/// The columns that a sweep reads.
const COLUMNS: &[ColumnDef] = &[
    ColumnDef::new("id", ValueType::Uuid),
    ColumnDef::nullable("model_id", ValueType::Text),
    ColumnDef::nullable("model_type", ValueType::Text),
    ColumnDef::nullable("event_type", ValueType::Text),
    ColumnDef::nullable("model_version", ValueType::Int),
    ColumnDef::nullable("event_index", ValueType::Int),
    ColumnDef::new("event_date", ValueType::Timestamp),
    ColumnDef::nullable("fanned_out", ValueType::Int),
];

const ID_AS_BYTES: &[ColumnDef] = &[ColumnDef::new("id", ValueType::Bytes)];

/// The events that lack deliveries.
pub(super) struct Lacking {
    /// Earlier generations, all of whose events somebody wants: those before this one.
    whole: i64,
    /// Later ones, each with the date before which nobody wants its events.
    since: Vec<(i64, DateTime<Utc>)>,
    until: i64,
}

impl Lacking {
    pub(super) fn new(subscriptions: &Subscriptions, until: i64) -> Self {
        let mut lacking = Self { whole: 0, since: Vec::new(), until };
        for generation in 0..until {
            match subscriptions.missing(generation, until) {
                // A handler that wants all events of a generation wants all earlier ones, too.
                Ok(None) => lacking.whole = generation + 1,
                Ok(Some(date)) => lacking.since.push((generation, date)),
                Err(()) => {}
            }
        }
        lacking
    }

    pub(super) fn is_empty(&self) -> bool {
        self.whole == 0 && self.since.is_empty()
    }

    /// Whether there are such events.
    pub(super) async fn any(&self, database: &Database) -> Result<bool, DbError> {
        match database.look(&self.ids(database, 1), HOLDER).await {
            // Its id is no UUID.
            Err(error) if error.kind() == DbErrorKind::Decode => Ok(true),
            found => Ok(!found?.is_empty()),
        }
    }

    /// The ids of up to `most` of them, as bytes: where UUIDs are texts, other programs may write any text.
    pub(super) fn texts(&self, database: &Database, most: usize) -> Query {
        Query { columns: ID_AS_BYTES.into(), ..self.ids(database, most) }
    }

    /// The ids of up to `most` of them.
    pub(super) fn ids(&self, database: &Database, most: usize) -> Query {
        let syntax = database.driver.syntax();
        let table = format!("{}{}", syntax.table(&EVENTS), syntax.by_generation());
        let mut sql = String::new();
        let mut args = Vec::new();
        let mut select = |condition: std::fmt::Arguments<'_>| {
            let union = if sql.is_empty() { "" } else { " UNION ALL " };
            // Ordered as the index is: without that, a server may read all events.
            let _ = write!(
                sql,
                "{union}SELECT id FROM (SELECT id FROM {table} WHERE {condition} \
                 ORDER BY fanned_out, id LIMIT {most}) AS lacking"
            );
        };
        select(format_args!("fanned_out IS NULL"));
        if self.whole > 0 {
            args.push(int(self.whole));
            select(format_args!("fanned_out < $1"));
        }
        for (generation, date) in &self.since {
            args.push(int(*generation));
            args.push(Arg::One(ValueType::Uuid, Value::Uuid(first_id(*date - CLOCKS_APART))));
            let n = args.len();
            select(format_args!("{}", syntax.of_generation(n - 1, n)));
        }
        let _ = write!(sql, " LIMIT {most}");
        Query { sql: sql.into(), args, columns: COLUMNS[..1].into() }
    }

    /// Those of these events that lack deliveries still.
    pub(super) fn among(&self, database: &Database, events: &TableInfo, ids: Vec<Value>) -> Query {
        let syntax = database.driver.syntax();
        let names: Vec<&str> = COLUMNS.iter().map(|column| column.name).collect();
        let sql = format!(
            "SELECT {} FROM {} WHERE (fanned_out IS NULL OR fanned_out < $1) AND {}",
            names.join(", "),
            syntax.table(&EVENTS),
            syntax.any(2, ValueType::Uuid, &events.columns[0]),
        );
        let args = vec![int(self.until), Arg::Many(ValueType::Uuid, ids)];
        Query { sql: sql.into(), args, columns: COLUMNS.into() }
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

    /// The same as [`among`](Self::among), locked; without those that somebody else has locked.
    pub(super) fn locked(&self, database: &Database, events: &TableInfo, ids: Vec<Value>) -> Query {
        let mut query = self.among(database, events, ids);
        if !database.driver.capabilities().single_writer {
            query.sql = format!("{} FOR UPDATE SKIP LOCKED", query.sql).into();
        }
        query
    }
}

fn int(number: i64) -> Arg {
    Arg::One(ValueType::Int, Value::Int(number))
}

/// The first id of an event that was made at this time.
pub(super) fn first_id(date: DateTime<Utc>) -> Uuid {
    let millis = date.timestamp_millis().max(0).unsigned_abs();
    uuid::Builder::from_unix_timestamp_millis(millis, &[0; 10]).into_uuid()
}
