//! Counts what is not handled yet.

use chrono::{DateTime, Utc};

use super::{Delivery, DeliveryState};
use crate::db::eventlog::EVENTS;
use crate::db::{Database, DbError, Query, Route};
use crate::domain::{ColumnDef, Entity, Field, Value, ValueType};

const HOLDER: &str = "status of deliveries";

/// The deliveries of one handler in one state.
#[derive(Debug, Clone, PartialEq)]
pub struct Backlog {
    /// The stored name of the handler.
    pub handler: String,
    /// The state.
    pub state: DeliveryState,
    /// Whether the handler has failed at them.
    pub failed: bool,
    /// How many there are.
    pub count: u64,
    /// The date of the oldest event among them.
    pub oldest: Option<DateTime<Utc>>,
}

const COLUMNS: &[ColumnDef] = &[
    ColumnDef::new("handler", ValueType::Text),
    ColumnDef::new("state", ValueType::Text),
    ColumnDef::new("failed", ValueType::Int),
    ColumnDef::new("many", ValueType::Int),
    ColumnDef::nullable("oldest", ValueType::Timestamp),
];

impl Backlog {
    fn read(row: Vec<Value>) -> Option<Self> {
        let [Value::Text(handler), state, Value::Int(failed), Value::Int(count), oldest] =
            <[Value; 5]>::try_from(row).ok()?
        else {
            return None;
        };
        let state = DeliveryState::from_value(state).ok()?;
        let oldest = if let Value::Timestamp(date) = oldest { Some(date) } else { None };
        Some(Self { handler, state, failed: failed == 1, count: count.unsigned_abs(), oldest })
    }
}

/// The deliveries of each handler, by state. It reads the deliveries that there are and their
/// events; what is handled costs nothing.
pub(crate) async fn backlog(database: &Database) -> Result<Vec<Backlog>, DbError> {
    // The columns of both are compared with the types of the code.
    for table in [Delivery::TABLE, &EVENTS] {
        database.table(table).await?;
    }
    let syntax = database.driver.syntax();
    let (deliveries, events) = (syntax.table(Delivery::TABLE), syntax.table(&EVENTS));
    // The date is looked up for each delivery. A join might read all events, also those that are
    // handled.
    let sql = format!(
        "SELECT handler, state, failed, count(*) AS many, min(event_date) AS oldest FROM \
         (SELECT d.handler, d.state, CASE WHEN d.attempts > 0 THEN 1 ELSE 0 END AS failed, \
         (SELECT e.event_date FROM {events} e WHERE e.id = d.event_id) AS event_date \
         FROM {deliveries} d) pending GROUP BY handler, state, failed"
    );
    let query = Query { sql: sql.into(), args: Vec::new(), columns: COLUMNS.into() };
    let rows = database.fetch(&query, Route::Primary, HOLDER).await?;
    Ok(rows.into_iter().filter_map(Backlog::read).collect())
}
