//! The rows of `eventlog.events`.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::deliveries::{Births, EventKind, ModelVersion, NewDelivery, StoredEvent, Subscriptions};
use super::{PlacedCall, Priority};
use crate::clock::to_micros;
use crate::db::eventlog::EVENTS;
use crate::db::{ActionId, ChangeKind, Database, DbError, StageError, Staged};
use crate::domain::{IdGenerator, Value};

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

/// What a row holds beside the action.
#[derive(Clone, Copy)]
struct Content<'c> {
    model_id: Uuid,
    model: &'c str,
    model_version: i64,
    /// The name and the version of an event; `None` for a call.
    event: Option<(&'static str, i32)>,
    payload: &'c str,
    date: DateTime<Utc>,
}

/// Adds one row per event and enqueued call, numbered within the action, and their deliveries to the
/// records of a batch. An action without both gets one row without a content, so that the action can
/// be looked up.
pub(crate) fn records<'e>(
    action: &ActionRecord,
    events: impl Iterator<Item = (usize, &'e EventRecord)>,
    calls: &'e [PlacedCall<'_>],
    ids: &IdGenerator,
    subscriptions: Option<&Subscriptions>,
    births: &mut Births,
) -> Result<Vec<Staged>, StageError> {
    let generation = subscriptions.map_or(0, Subscriptions::generation);
    let mut rows = Vec::new();
    let mut stored = Vec::new();
    for (index, event) in events {
        let content = event.content(action);
        let row = row(action, Some(content), index, ids.next_uuid(), generation);
        if let Some(subscriptions) = subscriptions {
            let delivery = content.delivery(row.id, index);
            let kind = EventKind { model: event.model, name: event.name };
            for handler in subscriptions.handlers(kind, action.completed, BEFORE_ALL) {
                births.add(handler, event.version_of_model(), delivery, stored.len());
            }
        }
        stored.push((row.id, content));
        rows.push(row);
    }
    for (index, call) in calls.iter().enumerate() {
        let content = call.content(action);
        let mut delivery = content.delivery(call.id, index);
        delivery.is_delayed = content.date > action.completed;
        delivery.priority = call.record.priority;
        births.add(&call.record.action.into(), call.version_of_stream(), delivery, stored.len());
        stored.push((call.id, content));
        rows.push(row(action, Some(content), index, call.id, generation));
    }
    if rows.is_empty() {
        rows.push(row(action, None, 0, ids.next_uuid(), generation));
    }
    let event_at = |at: usize| stored.get(at).map(|(id, content)| content.stored(action, *id));
    rows.append(&mut births.stage(event_at)?);
    Ok(rows)
}

impl EventRecord {
    fn version_of_model(&self) -> ModelVersion {
        ModelVersion { model: self.model, id: self.model_id, version: self.model_version }
    }

    fn content(&self, action: &ActionRecord) -> Content<'_> {
        Content {
            model_id: self.model_id,
            model: self.model,
            model_version: self.model_version,
            event: Some((self.name, self.version)),
            payload: &self.payload,
            date: action.completed,
        }
    }
}

impl PlacedCall<'_> {
    fn version_of_stream(&self) -> ModelVersion {
        ModelVersion { model: self.record.action, id: self.stream, version: self.version }
    }

    fn content(&self, action: &ActionRecord) -> Content<'_> {
        Content {
            model_id: self.stream,
            model: self.record.action,
            model_version: self.version,
            event: None,
            payload: &self.record.params,
            date: self.record.due.unwrap_or(action.completed),
        }
    }
}

impl Content<'_> {
    fn delivery(&self, id: Uuid, index: usize) -> NewDelivery {
        NewDelivery {
            event_id: id,
            stream: self.model_id,
            model_version: self.model_version,
            event_index: index as i64,
            event_date: self.date,
            is_delayed: false,
            priority: Priority::Normal,
        }
    }

    /// The row as it is read once it is stored.
    fn stored(&self, action: &ActionRecord, id: Uuid) -> StoredEvent {
        let (event_type, event_version) = self.event.unwrap_or(StoredEvent::OF_CALL);
        StoredEvent {
            id,
            namespace: action.namespace.clone(),
            action: action.action,
            action_name: action.name.to_owned(),
            model_id: self.model_id.to_string(),
            model_type: self.model.to_owned(),
            model_version: Some(self.model_version),
            event_type: event_type.to_owned(),
            event_version,
            payload: self.payload.to_owned(),
            date: to_micros(self.date),
            principal: action.principal.clone(),
            trace_parent: action.trace_parent.clone(),
        }
    }
}

fn row(
    action: &ActionRecord,
    content: Option<Content<'_>>,
    index: usize,
    id: Uuid,
    generation: i64,
) -> Staged {
    let text = |text: &Option<String>| text.clone().map_or(Value::Null, Value::Text);
    let of_content = |value: fn(Content<'_>) -> Value| content.map_or(Value::Null, value);
    let event = content.and_then(|content| content.event);
    let completed = to_micros(action.completed);
    let values = vec![
        Value::Uuid(id),
        Value::Text(action.namespace.clone()),
        Value::Uuid(action.action.0),
        Value::Text(action.name.to_owned()),
        Value::Json(action.params.clone()),
        Value::Timestamp(to_micros(action.started)),
        Value::Timestamp(completed),
        of_content(|content| Value::Text(content.model_id.to_string())),
        of_content(|content| Value::Text(content.model.to_owned())),
        event.map_or(Value::Null, |(name, _)| Value::Text(name.to_owned())),
        of_content(|content| Value::Json(content.payload.to_owned())),
        Value::Timestamp(content.map_or(completed, |content| to_micros(content.date))),
        Value::Bool(false),
        text(&action.principal),
        text(&action.reason),
        text(&action.trace_parent),
        of_content(|content| Value::Int(content.model_version)),
        content.map_or(Value::Null, |_| Value::Int(index as i64)),
        event.map_or(Value::Null, |(_, version)| Value::Int(version.into())),
        Value::Int(generation),
    ];
    Staged { table: &EVENTS, kind: ChangeKind::Insert, id, carries_shard: false, values }
}

/// Whether the action committed on this database: every commit of a traceable action writes a row
/// to the shard's outbox.
pub(crate) async fn is_recorded(database: &Database, action: ActionId) -> Result<bool, DbError> {
    Ok(database.recorded(&[action]).await?.contains(&action))
}
