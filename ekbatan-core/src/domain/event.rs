//! The events of a model.

use serde::Serialize;
use serde::ser::Error as _;

use super::json_text::check_depth;

/// The stored name and version of an event, as given to the derive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct EventName {
    /// The name in `event_type`.
    pub name: &'static str,
    /// The version of the payload's shape, 1 unless written otherwise.
    pub version: i32,
}

impl EventName {
    /// A name and a version.
    pub const fn new(name: &'static str, version: i32) -> Self {
        Self { name, version }
    }
}

/// The events of a model, as an enum. Derive it beside serde's `Serialize`:
///
/// ```
/// use ekbatan_core::domain::Event;
/// use ekbatan_macros::Event;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Debug, Clone, Serialize, Deserialize, Event)]
/// pub enum WalletEvent {
///     #[event(name = "WalletMoneyDeposited", version = 2)]
///     MoneyDeposited { amount: i64 },
///     #[event(name = "WalletClosed")]
///     Closed,
/// }
/// let event = WalletEvent::MoneyDeposited { amount: 5 };
/// assert_eq!(event.event_name().name, "WalletMoneyDeposited");
/// assert_eq!(event.payload().unwrap().to_string(), r#"{"amount":5}"#);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an event",
    note = "derive `Event` for the enum that lists the model's events"
)]
pub trait Event: Clone + Send + Sync + 'static {
    /// All names of this type.
    const NAMES: &'static [EventName];

    /// The name of this event.
    fn event_name(&self) -> EventName;

    /// The stored payload: the fields of the variant as a JSON object.
    fn payload(&self) -> Result<serde_json::Value, PayloadError>;
}

/// A payload that is not a JSON object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// serde failed.
    #[error("`{name}` does not serialize: {source}")]
    #[non_exhaustive]
    Serialize {
        /// The event or the action.
        name: String,
        /// The error of serde.
        source: serde_json::Error,
    },
    /// The payload is JSON, but not an object.
    #[error(
        "expected {what} to serialize to a JSON object, found {found}; use a struct with named fields"
    )]
    #[non_exhaustive]
    NotAnObject {
        /// The event and its type, or the parameters and their action.
        what: String,
        /// The kind of JSON that was found.
        found: &'static str,
    },
}

impl PayloadError {
    /// Returns `value` if it is an object.
    pub(crate) fn require_object(
        what: impl FnOnce() -> String,
        value: serde_json::Value,
    ) -> Result<serde_json::Value, PayloadError> {
        let found = match &value {
            serde_json::Value::Object(_) => return Ok(value),
            serde_json::Value::Null => "null",
            serde_json::Value::Bool(_) => "a truth value",
            serde_json::Value::Number(_) => "a number",
            serde_json::Value::String(_) => "a text",
            serde_json::Value::Array(_) => "a list",
        };
        Err(PayloadError::NotAnObject { what: what(), found })
    }
}

/// The text of a payload. Fails if a handler could not read it back, because it is nested too deeply.
pub(crate) fn payload_text(
    name: EventName,
    payload: &serde_json::Value,
) -> Result<String, PayloadError> {
    let text = payload.to_string();
    check_depth(&text).map_err(|reason| PayloadError::Serialize {
        name: name.name.to_owned(),
        source: serde_json::Error::custom(reason),
    })?;
    Ok(text)
}

/// The payload of an externally tagged enum: the content of the tag. Called by the derive, which
/// rejects serde's other representations at compile time.
pub fn payload_of<E: Serialize>(
    name: EventName,
    event: &E,
) -> Result<serde_json::Value, PayloadError> {
    let value = serde_json::to_value(event)
        .map_err(|source| PayloadError::Serialize { name: name.name.to_owned(), source })?;
    let inner = match value {
        serde_json::Value::String(_) => serde_json::Value::Object(serde_json::Map::new()),
        serde_json::Value::Object(map) if map.len() == 1 => {
            map.into_iter().next().map_or(serde_json::Value::Null, |(_, inner)| inner)
        }
        other => other,
    };
    let of = std::any::type_name::<E>();
    PayloadError::require_object(|| format!("the event `{}` of `{of}`", name.name), inner)
}

/// The event type of an entity. It has no values.
#[derive(Debug, Clone, Copy)]
pub enum NoEvent {}

impl Event for NoEvent {
    const NAMES: &'static [EventName] = &[];

    fn event_name(&self) -> EventName {
        match *self {}
    }

    fn payload(&self) -> Result<serde_json::Value, PayloadError> {
        match *self {}
    }
}

/// The result of a change: one event, an option or a vector of events, or `()` for none.
pub trait IntoEvents<E> {
    /// The events, in order.
    fn into_events(self) -> Vec<E>;
}

impl<E: Event> IntoEvents<E> for E {
    fn into_events(self) -> Vec<E> {
        vec![self]
    }
}

impl<E: Event> IntoEvents<E> for Option<E> {
    fn into_events(self) -> Vec<E> {
        self.into_iter().collect()
    }
}

impl<E: Event> IntoEvents<E> for Vec<E> {
    fn into_events(self) -> Vec<E> {
        self
    }
}

impl<E: Event, const N: usize> IntoEvents<E> for [E; N] {
    fn into_events(self) -> Vec<E> {
        self.into()
    }
}

impl<E: Event> IntoEvents<E> for () {
    fn into_events(self) -> Vec<E> {
        Vec::new()
    }
}
