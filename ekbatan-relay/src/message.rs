//! A message: an event, as a broker gets it.

use ekbatan_events::UndecodedEvent;
use uuid::Uuid;

/// A message for a broker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutgoingMessage {
    /// The event's id. It is the same however often the message is sent: receivers recognise a
    /// repetition by it.
    pub id: Uuid,
    /// Where it goes: a topic, a subject or a routing key, as the broker calls it.
    pub topic: String,
    /// Messages with one key keep their order, as far as those of one model do: see
    /// [`Relay`](crate::Relay).
    pub key: String,
    headers: Vec<(String, String)>,
    /// What it says.
    pub payload: Vec<u8>,
    /// The model. While a message of it is not acknowledged, no later one is sent.
    pub(crate) stream: Uuid,
}

/// The names of the headers.
pub mod header {
    /// The event's id.
    pub const EVENT_ID: &str = "ekbatan-event-id";
    /// The event's name.
    pub const EVENT_TYPE: &str = "ekbatan-event-type";
    /// The version of the payload's shape.
    pub const EVENT_VERSION: &str = "ekbatan-event-version";
    /// The date of the event, in the form of RFC 3339 with microseconds.
    pub const EVENT_DATE: &str = "ekbatan-event-date";
    /// The model's name.
    pub const MODEL_TYPE: &str = "ekbatan-model-type";
    /// The model's id.
    pub const MODEL_ID: &str = "ekbatan-model-id";
    /// The version of the model after the change; none if another program wrote the event.
    pub const MODEL_VERSION: &str = "ekbatan-model-version";
    /// The namespace of the application that emitted the event.
    pub const NAMESPACE: &str = "ekbatan-namespace";
    /// The name of the action.
    pub const ACTION: &str = "ekbatan-action";
    /// The execution that emitted the event.
    pub const ACTION_ID: &str = "ekbatan-action-id";
    /// Who called the action, if that is known.
    pub const PRINCIPAL: &str = "ekbatan-principal";
    /// The shard that stores the event.
    pub const SHARD: &str = "ekbatan-shard";
    /// The W3C trace context of the call, if there is one.
    pub const TRACE_PARENT: &str = "traceparent";
    /// The form of the payload: `application/json`.
    pub const CONTENT_TYPE: &str = "content-type";
}

impl OutgoingMessage {
    /// A message without an event, for tests of brokers. Its key is its model.
    pub fn new(
        id: Uuid,
        topic: impl Into<String>,
        key: impl Into<String>,
        payload: impl Into<Vec<u8>>,
    ) -> Self {
        let key = key.into();
        let stream = ekbatan_core::__private::deliveries::stream_of(&key);
        Self { id, topic: topic.into(), key, headers: Vec::new(), payload: payload.into(), stream }
    }

    /// The message of an event, with the headers that every message has. Two spellings of one UUID are one
    /// key.
    pub(crate) fn of(event: &UndecodedEvent, topic: String) -> Self {
        let model = &event.model_id;
        let key = Uuid::parse_str(model).map_or_else(|_| model.clone(), |id| id.to_string());
        let mut message = Self::new(event.id, topic, key, event.event.as_str());
        let date = event.date.to_rfc3339_opts(DATE_FORM, true);
        let mut add = |name, value: String| message.set_header(name, value);
        add(header::EVENT_ID, event.id.to_string());
        add(header::EVENT_TYPE, event.name.clone());
        add(header::EVENT_VERSION, event.version.to_string());
        add(header::EVENT_DATE, date);
        add(header::MODEL_TYPE, event.model_type.clone());
        add(header::MODEL_ID, event.model_id.clone());
        add(header::NAMESPACE, event.namespace.clone());
        add(header::ACTION, event.action_name.clone());
        add(header::ACTION_ID, event.action.to_string());
        add(header::SHARD, event.shard.to_string());
        add(header::CONTENT_TYPE, "application/json".to_owned());
        let optional = [
            (header::MODEL_VERSION, event.model_version.map(|version| version.to_string())),
            (header::PRINCIPAL, event.principal.clone()),
            (header::TRACE_PARENT, event.trace_parent.clone()),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                message.set_header(name, value);
            }
        }
        message
    }

    /// The names and values of the headers.
    pub fn headers(&self) -> impl Iterator<Item = (&str, &str)> {
        self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The value of the header with this name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(of, _)| of == name).map(|(_, value)| value.as_str())
    }

    /// Sets a header. What not every broker takes is replaced: control characters of the value become
    /// `%0A`, and what is no letter, no digit and none of `-_.` in the name becomes `-`.
    pub fn set_header(&mut self, name: impl AsRef<str>, value: impl AsRef<str>) {
        let allowed = |character: char| {
            let is_allowed = character.is_ascii_alphanumeric() || "-_.".contains(character);
            if is_allowed { character } else { '-' }
        };
        let name: String = name.as_ref().chars().map(allowed).collect();
        self.headers.retain(|(of, _)| *of != name);
        self.headers.push((name, without_controls(value.as_ref())));
    }

    /// Whether both are of one model, so that they have an order.
    pub fn is_of_same_model(&self, other: &Self) -> bool {
        self.stream == other.stream
    }

    /// How many bytes the broker gets, but for what its protocol adds.
    pub fn size(&self) -> usize {
        let headers = self.headers.iter().map(|(name, value)| name.len() + value.len());
        self.payload.len() + self.key.len() + headers.sum::<usize>()
    }
}

const DATE_FORM: ekbatan_core::__private::chrono::SecondsFormat =
    ekbatan_core::__private::chrono::SecondsFormat::Micros;

fn without_controls(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for character in value.chars() {
        if character.is_ascii_control() {
            text.push_str(&format!("%{:02X}", character as u32));
        } else {
            text.push(character);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_set_once_and_on_one_line() {
        let mut message = OutgoingMessage::new(Uuid::nil(), "a", "k", "{}");
        message.set_header(header::PRINCIPAL, "alice");
        message.set_header(header::PRINCIPAL, "mallory\r\nekbatan-shard: 9");
        assert_eq!(message.header(header::PRINCIPAL), Some("mallory%0D%0Aekbatan-shard: 9"));
        assert_eq!(message.headers().count(), 1);
        message.set_header("a b:", "1");
        assert_eq!(message.header("a-b-"), Some("1"));
    }
}
