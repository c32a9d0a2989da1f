//! Events as they are stored.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::EventKind;
use crate::db::eventlog::EVENTS;
use crate::db::{ActionId, Arg, Database, DbError, Query};
use crate::domain::{ColumnDef, Value, ValueType};

/// A row of the outbox that is an event, or a call that an action enqueued. The model of a call is its
/// stream, with the called action's name, and its payload are the parameters.
#[derive(Debug, Clone)]
pub struct StoredEvent {
    /// The event's own id.
    pub id: Uuid,
    /// The namespace of the application that emitted it.
    pub namespace: String,
    /// The execution that emitted it.
    pub action: ActionId,
    /// The name of the action.
    pub action_name: String,
    /// The model's id, as text.
    pub model_id: String,
    /// The model's name.
    pub model_type: String,
    /// The version of the model after the change; `None` if another program wrote the row.
    pub model_version: Option<i64>,
    /// The event's name; empty if the row is an enqueued call.
    pub event_type: String,
    /// The version of the payload's shape.
    pub event_version: i32,
    /// The payload, as JSON.
    pub payload: String,
    /// The time of the event.
    pub date: DateTime<Utc>,
    /// Who called the action.
    pub principal: Option<String>,
    /// The W3C trace context of the call.
    pub trace_parent: Option<String>,
}

const COLUMNS: &[ColumnDef] = &[
    ColumnDef::new("id", ValueType::Uuid),
    ColumnDef::new("namespace", ValueType::Text),
    ColumnDef::new("action_id", ValueType::Uuid),
    ColumnDef::new("action_name", ValueType::Text),
    ColumnDef::nullable("model_id", ValueType::Text),
    ColumnDef::nullable("model_type", ValueType::Text),
    ColumnDef::nullable("model_version", ValueType::Int),
    ColumnDef::nullable("event_type", ValueType::Text),
    ColumnDef::nullable("event_version", ValueType::Int),
    ColumnDef::nullable("payload", ValueType::Json),
    ColumnDef::new("event_date", ValueType::Timestamp),
    ColumnDef::nullable("principal", ValueType::Text),
    ColumnDef::nullable("trace_parent", ValueType::Text),
    ColumnDef::nullable("payload_bytes", ValueType::Int),
];

impl StoredEvent {
    /// What an enqueued call has as the name and the version of an event.
    pub(crate) const OF_CALL: (&'static str, i32) = ("", 1);

    /// Its model and its name.
    pub fn kind(&self) -> EventKind<'_> {
        EventKind { model: &self.model_type, name: &self.event_type }
    }

    /// The event, and the size of its payload. `None` for the row of an action without events.
    fn read(row: Vec<Value>) -> Option<(Self, usize)> {
        let [
            Value::Uuid(id),
            Value::Text(namespace),
            Value::Uuid(action),
            Value::Text(action_name),
            Value::Text(model_id),
            model_type,
            model_version,
            event_type,
            event_version,
            payload,
            Value::Timestamp(date),
            principal,
            trace_parent,
            bytes,
        ] = <[Value; 14]>::try_from(row).ok()?
        else {
            return None;
        };
        let text = |value| if let Value::Text(text) = value { Some(text) } else { None };
        let number = |value| if let Value::Int(number) = value { Some(number) } else { None };
        let bytes = number(bytes).and_then(|n| n.try_into().ok()).unwrap_or(0);
        let event = Self {
            id,
            namespace,
            action: ActionId(action),
            action_name,
            model_id,
            model_type: text(model_type).unwrap_or_default(),
            model_version: number(model_version),
            event_type: text(event_type).unwrap_or_default(),
            event_version: number(event_version).and_then(|n| n.try_into().ok()).unwrap_or(1),
            payload: if let Value::Json(json) = payload { json } else { "{}".to_owned() },
            date,
            principal: text(principal),
            trace_parent: text(trace_parent),
        };
        Some((event, bytes))
    }
}

/// The events with these ids, in no order. A payload of more than `longest` bytes is left out; then its
/// size is returned.
pub(crate) async fn stored_events(
    database: &Database,
    ids: Vec<Uuid>,
    longest: Option<usize>,
) -> Result<Vec<(StoredEvent, Option<usize>)>, DbError> {
    let events = database.table(&EVENTS).await?;
    let syntax = database.driver.syntax();
    let size = syntax.bytes_of_payload();
    let read = |column: &ColumnDef| match (column.name, longest) {
        ("payload_bytes", None) => "0".to_owned(),
        ("payload_bytes", Some(_)) => size.to_owned(),
        ("payload", Some(longest)) => format!("CASE WHEN {size} <= {longest} THEN payload END"),
        (name, _) => name.to_owned(),
    };
    let read: Vec<String> = COLUMNS.iter().map(read).collect();
    let query = Query {
        sql: format!(
            "SELECT {} FROM {} WHERE {}",
            read.join(", "),
            syntax.table(&EVENTS),
            syntax.any(1, ValueType::Uuid, &events.columns[0])
        )
        .into(),
        args: vec![Arg::Many(ValueType::Uuid, ids.into_iter().map(Value::Uuid).collect())],
        columns: COLUMNS.into(),
    };
    let rows = database.look(&query, "events").await?;
    let is_long = |bytes: &usize| longest.is_some_and(|longest| *bytes > longest);
    let events = rows.into_iter().filter_map(StoredEvent::read);
    Ok(events.map(|(event, bytes)| (event, Some(bytes).filter(is_long))).collect())
}
