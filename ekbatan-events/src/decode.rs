//! From a stored payload to an event.

use std::fmt;

use ekbatan_core::domain::{Event, EventName};
use serde::de::value::U32Deserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, EnumAccess, IntoDeserializer, VariantAccess, Visitor,
};
use serde::{Deserializer, forward_to_deserialize_any};
use serde_json::Value as Json;

/// The events of a model that a handler can handle: an enum that derives `Event` and serde's
/// `Deserialize`.
pub trait HandledEvent: Sized + Send + Sync + 'static {
    /// All names of this type.
    const NAMES: &'static [EventName];

    /// The event with this name and payload.
    fn decode(name: &str, payload: Json) -> Result<Self, DecodeError>;
}

/// Error returned when a stored event is none that the handler knows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// No variant has this name.
    #[error("no variant of `{ty}` is stored as `{name}`")]
    #[non_exhaustive]
    Name {
        /// The enum.
        ty: &'static str,
        /// The stored name.
        name: String,
    },
    /// The payload does not fit the variant.
    #[error(
        "the payload of `{name}` does not fit the code: {source}; implement `EventHandler::upcast` for payloads of earlier versions"
    )]
    #[non_exhaustive]
    Payload {
        /// The stored name.
        name: String,
        /// The cause.
        source: serde_json::Error,
    },
    /// The stored parameters of an enqueued call do not fit the action.
    #[error(
        "the parameters of an enqueued call of `{action}` do not fit the code: {source}; new parameters of an action need a default"
    )]
    #[non_exhaustive]
    Params {
        /// The action.
        action: &'static str,
        /// The cause.
        source: serde_json::Error,
    },
    /// The application's `upcast` failed.
    #[error("`upcast` failed for version {version} of `{name}`: {source}")]
    #[non_exhaustive]
    Upcast {
        /// The stored name.
        name: String,
        /// The stored version.
        version: i32,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl<E: Event + DeserializeOwned> HandledEvent for E {
    const NAMES: &'static [EventName] = <E as Event>::NAMES;

    fn decode(name: &str, payload: Json) -> Result<Self, DecodeError> {
        let unknown =
            || DecodeError::Name { ty: std::any::type_name::<E>(), name: name.to_owned() };
        let names = <E as Event>::NAMES;
        let index = names.iter().position(|known| known.name == name).ok_or_else(unknown)?;
        let event = E::deserialize(Variant { index: index as u32, payload })
            .map_err(|source| DecodeError::Payload { name: name.to_owned(), source })?;
        // A variant that serde skips would shift the numbers of those behind it.
        if event.event_name().name == name { Ok(event) } else { Err(unknown()) }
    }
}

/// A variant of an enum, by its position, with the payload of its fields. Serde's names of the
/// variants are not stored.
struct Variant {
    index: u32,
    payload: Json,
}

impl<'de> Deserializer<'de> for Variant {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_enum(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'de> EnumAccess<'de> for Variant {
    type Error = serde_json::Error;
    type Variant = Fields;

    fn variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<(S::Value, Fields), Self::Error> {
        let index: U32Deserializer<Self::Error> = self.index.into_deserializer();
        Ok((seed.deserialize(index)?, Fields(self.payload)))
    }
}

/// The fields of a variant.
struct Fields(Json);

impl<'de> VariantAccess<'de> for Fields {
    type Error = serde_json::Error;

    fn unit_variant(self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn newtype_variant_seed<S: DeserializeSeed<'de>>(
        self,
        seed: S,
    ) -> Result<S::Value, Self::Error> {
        seed.deserialize(self.0)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Self::Error> {
        self.0.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_struct("", fields, visitor)
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use ekbatan_macros::Event;
    use serde::{Deserialize, Serialize};
    use serde_json::json;

    use super::*;

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Limits {
        daily: i64,
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
    #[serde(rename_all = "kebab-case")]
    enum AccountEvent {
        #[event(name = "AccountOpened")]
        Opened { owner: String },
        #[event(name = "AccountClosed")]
        Closed,
        #[event(name = "AccountLimited")]
        #[serde(rename = "limits")]
        Limited(Limits),
    }

    #[test]
    fn every_form_of_variant_is_read_as_it_was_stored() {
        let events = [
            AccountEvent::Opened { owner: "alice".into() },
            AccountEvent::Closed,
            AccountEvent::Limited(Limits { daily: 5 }),
        ];
        for event in events {
            let (name, payload) = (event.event_name().name, event.payload().unwrap());
            assert_eq!(AccountEvent::decode(name, payload).unwrap(), event);
        }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let error = AccountEvent::decode("AccountSold", json!({})).unwrap_err().to_string();
        assert!(error.ends_with("AccountEvent` is stored as `AccountSold`"), "{error}");
        let error = AccountEvent::decode("AccountOpened", json!({})).unwrap_err().to_string();
        assert!(
            error.contains("`AccountOpened`") && error.contains("missing field `owner`"),
            "{error}"
        );
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
    enum Skipping {
        #[event(name = "First")]
        First,
        #[event(name = "Hidden")]
        #[serde(skip_deserializing)]
        #[allow(dead_code)] // no event becomes it
        Hidden,
        #[event(name = "Last")]
        Last,
    }

    #[test]
    fn a_variant_that_serde_skips_is_never_taken_for_another() {
        assert_eq!(Skipping::decode("First", json!({})).unwrap(), Skipping::First);
        assert!(Skipping::decode("Hidden", json!({})).is_err());
        assert!(Skipping::decode("Last", json!({})).is_err());
    }
}
