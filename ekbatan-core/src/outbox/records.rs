//! The rows of `eventlog.events`.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::deliveries::{Births, ModelVersion, NewDelivery, StoredEvent, Subscriptions};
use crate::clock::to_micros;
use crate::db::eventlog::EVENTS;
use crate::db::{ActionId, Arg, ChangeKind, Database, DbError, Query, Route, StageError, Staged};
use crate::domain::{ColumnDef, IdGenerator, Value, ValueType};

/// No subscription began in this generation or before.
const BEFORE_ALL: i64 = 0;

/// The values that all event rows of an action share.
#[derive(Debug, Clone)]
pub(crate) struct ActionRecord {
    pub(crate) namespace: String,
    pub(crate) action: ActionId,
    pub(crate) name: &'static str,
    pub(crate) params: String,
    pub(crate) started: DateTime<Utc>,
    pub(crate) completed: DateTime<Utc>,
    pub(crate) principal: Option<String>,
    pub(crate) reason: Option<String>,
    pub(crate) trace_parent: Option<String>,
}

/// One event of one model.
#[derive(Debug, Clone)]
pub(crate) struct EventRecord {
    /// The index of the plan's row that emitted it.
    pub(crate) row: usize,
    pub(crate) model_id: Uuid,
    pub(crate) model: &'static str,
    pub(crate) model_version: i64,
    pub(crate) name: &'static str,
    pub(crate) version: i32,
    pub(crate) payload: String,
}

/// Adds one row per event, numbered within the action, and its deliveries to the records of a batch.
/// An action without events gets one row without an event, so that the action can be looked up.
pub(crate) fn records<'e>(
    action: &ActionRecord,
    events: impl Iterator<Item = (usize, &'e EventRecord)>,
    ids: &IdGenerator,
    subscriptions: Option<&Subscriptions>,
    births: &mut Births,
) -> Result<Vec<Staged>, StageError> {
    let generation = subscriptions.map_or(0, Subscriptions::generation);
    let mut rows = Vec::new();
    let mut stored = Vec::new();
    for (index, event) in events {
        let row = row(action, Some(event), index, ids.next_uuid(), generation);
        if let Some(subscriptions) = subscriptions {
            let delivery = NewDelivery {
                event_id: row.id,
                stream: event.model_id,
                model_version: event.model_version,
                event_index: index as i64,
                event_date: action.completed,
            };
            for handler in subscriptions.handlers(event.name, action.completed, BEFORE_ALL) {
                births.add(handler, event.version_of_model(), delivery, stored.len());
            }
        }
        stored.push((row.id, event));
        rows.push(row);
    }
    if rows.is_empty() {
        rows.push(row(action, None, 0, ids.next_uuid(), generation));
    }
    let event_at = |at: usize| stored.get(at).map(|(id, event)| stored_event(action, event, *id));
    rows.append(&mut births.stage(event_at)?);
    Ok(rows)
}

impl EventRecord {
    fn version_of_model(&self) -> ModelVersion {
        ModelVersion { model: self.model, id: self.model_id, version: self.model_version }
    }
}

/// An event as it is read once it is stored.
fn stored_event(action: &ActionRecord, event: &EventRecord, id: Uuid) -> StoredEvent {
    StoredEvent {
        id,
        action: action.action,
        action_name: action.name.to_owned(),
        model_id: event.model_id.to_string(),
        model_type: event.model.to_owned(),
        model_version: Some(event.model_version),
        event_type: event.name.to_owned(),
        event_version: event.version,
        payload: event.payload.clone(),
        date: to_micros(action.completed),
        principal: action.principal.clone(),
        trace_parent: action.trace_parent.clone(),
    }
}

fn row(
    action: &ActionRecord,
    event: Option<&EventRecord>,
    index: usize,
    id: Uuid,
    generation: i64,
) -> Staged {
    let text = |text: &Option<String>| text.clone().map_or(Value::Null, Value::Text);
    let of_event = |value: fn(&EventRecord) -> Value| event.map_or(Value::Null, value);
    let completed = to_micros(action.completed);
    let values = vec![
        Value::Uuid(id),
        Value::Text(action.namespace.clone()),
        Value::Uuid(action.action.0),
        Value::Text(action.name.to_owned()),
        Value::Json(action.params.clone()),
        Value::Timestamp(to_micros(action.started)),
        Value::Timestamp(completed),
        of_event(|event| Value::Text(event.model_id.to_string())),
        of_event(|event| Value::Text(event.model.to_owned())),
        of_event(|event| Value::Text(event.name.to_owned())),
        of_event(|event| Value::Json(event.payload.clone())),
        Value::Timestamp(completed),
        Value::Bool(false),
        text(&action.principal),
        text(&action.reason),
        text(&action.trace_parent),
        of_event(|event| Value::Int(event.model_version)),
        event.map_or(Value::Null, |_| Value::Int(index as i64)),
        of_event(|event| Value::Int(event.version.into())),
        Value::Int(generation),
    ];
    Staged { table: &EVENTS, kind: ChangeKind::Insert, id, carries_shard: false, values }
}

/// Whether the action committed on this database: every commit of a traceable action writes a row
/// to the shard's outbox.
pub(crate) async fn is_recorded(database: &Database, action: ActionId) -> Result<bool, DbError> {
    let table = database.driver.syntax().table(&EVENTS);
    let query = Query {
        sql: format!("SELECT action_id FROM {table} WHERE action_id = $1 LIMIT 1").into(),
        args: vec![Arg::One(ValueType::Uuid, Value::Uuid(action.0))],
        columns: vec![ColumnDef::new("action_id", ValueType::Uuid)].into(),
    };
    Ok(!database.fetch(&query, Route::Primary, "outcome").await?.is_empty())
}
