//! The common implementation of typed ids. They compare, order, print and store like their UUID.

/// A text that is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an id; an id is a UUID, such as 0199a1c2-0000-7000-8000-000000000000")]
pub struct ParseIdError(pub(super) String);

/// Implements the traits of an id for a struct with a field `uuid` and a function `from_uuid`.
macro_rules! typed_uuid {
    ($id:ident) => {
        impl<M: 'static> $crate::domain::Field for $id<M> {
            const TYPE: $crate::domain::ValueType = $crate::domain::ValueType::Uuid;

            fn to_value(&self) -> Result<$crate::domain::Value, $crate::domain::FieldError> {
                Ok($crate::domain::Value::Uuid(self.uuid))
            }

            fn from_value(
                value: $crate::domain::Value,
            ) -> Result<Self, $crate::domain::FieldError> {
                <uuid::Uuid as $crate::domain::Field>::from_value(value).map(Self::from_uuid)
            }
        }

        impl<M: 'static> $crate::domain::Comparable for $id<M> {}

        impl<M> Clone for $id<M> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<M> Copy for $id<M> {}

        impl<M> PartialEq for $id<M> {
            fn eq(&self, other: &Self) -> bool {
                self.uuid == other.uuid
            }
        }

        impl<M> Eq for $id<M> {}

        impl<M> PartialOrd for $id<M> {
            fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }

        impl<M> Ord for $id<M> {
            fn cmp(&self, other: &Self) -> std::cmp::Ordering {
                self.uuid.cmp(&other.uuid)
            }
        }

        impl<M> std::hash::Hash for $id<M> {
            fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
                self.uuid.hash(state);
            }
        }

        impl<M> std::fmt::Debug for $id<M> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.uuid, f)
            }
        }

        impl<M> std::fmt::Display for $id<M> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(&self.uuid, f)
            }
        }

        impl<M> std::str::FromStr for $id<M> {
            type Err = $crate::domain::ParseIdError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let parsed = text.parse().map(Self::from_uuid);
                parsed.map_err(|_| $crate::domain::ParseIdError(text.to_owned()))
            }
        }

        impl<M> From<uuid::Uuid> for $id<M> {
            fn from(uuid: uuid::Uuid) -> Self {
                Self::from_uuid(uuid)
            }
        }

        impl<M> From<$id<M>> for uuid::Uuid {
            fn from(id: $id<M>) -> Self {
                id.uuid
            }
        }

        impl<M> serde::Serialize for $id<M> {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                self.uuid.serialize(serializer)
            }
        }

        impl<'de, M> serde::Deserialize<'de> for $id<M> {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <uuid::Uuid as serde::Deserialize>::deserialize(deserializer).map(Self::from_uuid)
            }
        }
    };
}

pub(super) use typed_uuid;
