//! Walks over stored events, in windows of the table, for a replay.
//!
//! Invariant: no statement looks at more than [`WINDOW`] rows, so none runs long, however many
//! events are stored.

use std::collections::HashSet;
use std::fmt::Write as _;

use chrono::{DateTime, Utc};

use super::EventPlace;
use super::sweep::stream_of;
use crate::clock::to_micros;
use crate::db::eventlog::EVENTS;
use crate::db::{Arg, Database, DbError, DbErrorKind, Query, Route, Rows, TableInfo};
use crate::domain::{ColumnDef, Value, ValueType};
use crate::outbox::StoredId;

/// How many rows a statement looks at.
const WINDOW: usize = 5_000;

const HOLDER: &str = "replay of events";

/// Which stored events are looked for.
#[derive(Debug, Clone, Default)]
pub struct StoredEvents {
    /// The names of the events; `None` for any.
    pub event_types: Option<HashSet<String>>,
    /// The model's name; `None` for any.
    pub model_type: Option<String>,
    /// The model's id, as text, in the spellings that it may have; `None` for any.
    pub model_ids: Option<HashSet<String>>,
    /// From this date on.
    pub from: Option<DateTime<Utc>>,
    /// Before this date.
    pub until: Option<DateTime<Utc>>,
}

/// A stored event, without its content.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredPlace {
    /// Its place in its stream.
    pub place: EventPlace,
    /// Its name.
    pub event_type: String,
    /// The model's name; empty if another program wrote none.
    pub model_type: String,
    /// The time of the event.
    pub date: DateTime<Utc>,
    /// The generation whose deliveries it has; `None` for none.
    pub fanned_out: Option<i64>,
}

/// What a window holds.
#[derive(Debug)]
pub struct PlacesPage {
    /// The events that were looked for.
    pub places: Vec<StoredPlace>,
    /// Where the next window begins; `None` after the last one.
    pub next: Option<StoredId>,
}

/// The columns that are read beside the id.
const COLUMNS: &[ColumnDef] = &[
    ColumnDef::nullable("event_type", ValueType::Text),
    ColumnDef::nullable("model_type", ValueType::Text),
    ColumnDef::nullable("model_id", ValueType::Text),
    ColumnDef::nullable("model_version", ValueType::Int),
    ColumnDef::nullable("event_index", ValueType::Int),
    ColumnDef::new("event_date", ValueType::Timestamp),
    ColumnDef::nullable("fanned_out", ValueType::Int),
];

impl StoredPlace {
    /// `None` for the row of an action without events, and if the id is no UUID: no handler has got the event.
    fn read(row: Vec<Value>) -> Option<Self> {
        let [
            id,
            Value::Text(event_type),
            model_type,
            Value::Text(model),
            version,
            index,
            Value::Timestamp(date),
            fanned_out,
        ] = <[Value; 8]>::try_from(row).ok()?
        else {
            return None;
        };
        let number = |value| if let Value::Int(number) = value { Some(number) } else { None };
        let place = EventPlace {
            stream: stream_of(&model),
            // As the sweep does it for events without versions.
            model_version: number(version).unwrap_or(date.timestamp_micros()),
            event_index: number(index).unwrap_or(0),
            event_id: StoredId::read(&id)?.uuid()?,
        };
        Some(Self {
            place,
            event_type,
            model_type: if let Value::Text(name) = model_type { name } else { String::new() },
            date,
            fanned_out: number(fanned_out),
        })
    }
}

/// The events of the window after an id.
pub(crate) async fn stored_places(
    database: &Database,
    wanted: &StoredEvents,
    after: &StoredId,
) -> Result<PlacesPage, DbError> {
    let events = database.table(&EVENTS).await?;
    let table = database.driver.syntax().table(&EVENTS);
    let id = StoredId::column(&events);
    let begin = format!("id > $1{}", StoredId::without_blobs(database));
    let end = Query {
        sql: format!(
            "SELECT id FROM {table} WHERE {begin} ORDER BY id LIMIT 1 OFFSET {}",
            WINDOW - 1
        )
        .into(),
        args: vec![after.arg()],
        columns: vec![id].into(),
    };
    let end = database.fetch(&end, Route::Primary, HOLDER).await?;
    let next = end.first().and_then(|row| StoredId::read(row.first()?));
    let mut filter = Filter { database, events: &events, sql: begin, args: vec![after.arg()] };
    if let Some(last) = &next {
        filter.args.push(last.arg());
        let _ = write!(filter.sql, " AND id <= ${}", filter.args.len());
    }
    for (column, texts) in [("event_type", &wanted.event_types), ("model_id", &wanted.model_ids)] {
        if let Some(texts) = texts {
            filter.and_among(column, texts.iter().cloned().map(Value::Text).collect());
        }
    }
    if let Some(model_type) = &wanted.model_type {
        filter.and("model_type", "=", Value::Text(model_type.clone()));
    }
    for (operator, date) in [(">=", wanted.from), ("<", wanted.until)] {
        if let Some(date) = date {
            filter.and("event_date", operator, Value::Timestamp(to_micros(date)));
        }
    }
    let rows = match database.fetch(&filter.select(COLUMNS), Route::Primary, HOLDER).await {
        Err(error) if error.kind() == DbErrorKind::Decode => readable(&filter).await?,
        rows => rows?,
    };
    Ok(PlacesPage { places: rows.into_iter().filter_map(StoredPlace::read).collect(), next })
}

/// The rows of a window without those that cannot be read. The sweep has passed over them, so no handler
/// has got their events.
async fn readable(window: &Filter<'_>) -> Result<Rows, DbError> {
    let listed = window.database.fetch(&window.select(&[]), Route::Primary, HOLDER).await?;
    let ids = listed.iter().filter_map(|row| StoredId::read(row.first()?)?.uuid());
    let mut parts: Vec<Vec<Value>> = vec![ids.map(Value::Uuid).collect()];
    let mut rows = Rows::new();
    while let Some(mut part) = parts.pop() {
        if part.is_empty() {
            continue; // no event of the window has a UUID
        }
        let mut filter = window.clone();
        filter.and_among("id", part.clone());
        match window.database.fetch(&filter.select(COLUMNS), Route::Primary, HOLDER).await {
            Err(error) if error.kind() == DbErrorKind::Decode => {
                if part.len() > 1 {
                    let rest = part.split_off(part.len() / 2);
                    parts.extend([part, rest]);
                }
            }
            found => rows.extend(found?),
        }
    }
    Ok(rows)
}

/// A condition on events.
#[derive(Clone)]
struct Filter<'d> {
    database: &'d Database,
    events: &'d TableInfo,
    sql: String,
    args: Vec<Arg>,
}

impl Filter<'_> {
    fn and(&mut self, name: &str, operator: &str, value: Value) {
        let Some(at) = EVENTS.columns.iter().position(|column| column.name == name) else { return };
        let (column, ty) = (&self.events.columns[at], EVENTS.columns[at].ty);
        let syntax = self.database.driver.syntax();
        self.args.push(Arg::One(ty, value));
        let (operand, argument) =
            (syntax.operand(column, ty), syntax.argument(self.args.len(), ty, column));
        let _ = write!(self.sql, " AND {operand} {operator} {argument}");
    }

    fn and_among(&mut self, name: &str, values: Vec<Value>) {
        let Some(at) = EVENTS.columns.iter().position(|column| column.name == name) else { return };
        let (column, ty) = (&self.events.columns[at], EVENTS.columns[at].ty);
        self.args.push(Arg::Many(ty, values));
        let any = self.database.driver.syntax().any(self.args.len(), ty, column);
        let _ = write!(self.sql, " AND {any}");
    }

    /// Reads the id, and these columns.
    fn select(&self, columns: &[ColumnDef]) -> Query {
        let id = StoredId::column(self.events);
        let columns: Vec<ColumnDef> = std::iter::once(id).chain(columns.iter().copied()).collect();
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        let table = self.database.driver.syntax().table(&EVENTS);
        Query {
            sql: format!("SELECT {} FROM {table} WHERE {}", names.join(", "), self.sql).into(),
            args: self.args.clone(),
            columns: columns.into(),
        }
    }
}
