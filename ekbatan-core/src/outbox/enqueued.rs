//! Calls that an action enqueues, to run later.
//!
//! A call is a row of the outbox that is no event, with one delivery for the action that it calls.
//! So it is committed with the rows of the action that enqueues it, and nodes claim it, run it, try
//! it again and give it up as they do with an event for a handler. The row has no event type:
//! no handler, and no other program that reads the outbox, takes it for an event.

use chrono::{DateTime, Utc};
use ekbatan_macros::{Entity, State};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::Priority;
use crate::domain::Id;

/// What an action does with calls. Steps with the same key take effect in their order.
#[derive(Debug, Clone)]
pub(crate) enum EnqueueStep {
    /// It enqueues a call.
    Enqueue(CallRecord),
    /// It cancels the call of an action with this unique key.
    Cancel { action: &'static str, key: String },
}

/// A call, as an action enqueues it.
#[derive(Debug, Clone)]
pub(crate) struct CallRecord {
    /// The action that is called.
    pub(crate) action: &'static str,
    /// Its parameters, as JSON.
    pub(crate) params: String,
    /// The time before which it does not run; `None`: it runs at once.
    pub(crate) due: Option<DateTime<Utc>>,
    pub(crate) priority: Priority,
    /// Of the calls of the action with the same text, only one waits at a time.
    pub(crate) unique: Option<String>,
    /// Calls of the action with the same text run one after another.
    pub(crate) in_turn: Option<String>,
}

impl CallRecord {
    pub(crate) fn unique_key(&self) -> Option<Id<EnqueuedKey>> {
        let key = self.unique.as_ref()?;
        Some(EnqueuedKey::id_of(KeyUse::Unique, self.action, key))
    }

    pub(crate) fn turn_key(&self) -> Option<Id<EnqueuedKey>> {
        let key = self.in_turn.as_ref()?;
        Some(EnqueuedKey::id_of(KeyUse::InTurn, self.action, key))
    }

    pub(crate) fn is_unique_by(&self, action: &str, key: &str) -> bool {
        self.action == action && self.unique.as_deref() == Some(key)
    }
}

/// A call with its place among others.
#[derive(Debug)]
pub(crate) struct PlacedCall<'r> {
    /// The id of the row.
    pub(crate) id: Uuid,
    /// Calls of one stream run one after another, in the order of their versions.
    pub(crate) stream: Uuid,
    pub(crate) version: i64,
    pub(crate) record: &'r CallRecord,
}

/// A key of enqueued calls.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.enqueued_keys")]
pub struct EnqueuedKey {
    /// The identity. It follows from the action, the text and the use of the key.
    pub id: Id<EnqueuedKey>,
    /// The delivery of the last call with the key, or nil.
    pub delivery: Uuid,
    /// The time of the last change.
    pub changed: DateTime<Utc>,
    /// Has no meaning.
    pub state: EnqueuedKeyState,
}

/// The only state of such a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
pub enum EnqueuedKeyState {
    /// It is known.
    Active,
}

/// What a key is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyUse {
    /// Only one call with the key waits at a time.
    Unique,
    /// Calls with the key run one after another.
    InTurn,
}

impl EnqueuedKey {
    /// The identity of a key.
    pub(crate) fn id_of(of: KeyUse, action: &str, key: &str) -> Id<Self> {
        let mut hash = Sha256::new();
        hash.update(match of {
            KeyUse::Unique => "unique",
            KeyUse::InTurn => "in turn",
        });
        for text in [action, key] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        // MariaDB refuses some UUIDs of later versions.
        let id = uuid::Builder::from_bytes(bytes).with_version(uuid::Version::Sha1).into_uuid();
        Id::from_uuid(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_other_actions_uses_and_texts_are_other_keys() {
        let key = EnqueuedKey::id_of(KeyUse::Unique, "remind", "a");
        assert_eq!(key, EnqueuedKey::id_of(KeyUse::Unique, "remind", "a"));
        assert_ne!(key, EnqueuedKey::id_of(KeyUse::InTurn, "remind", "a"));
        assert_ne!(key, EnqueuedKey::id_of(KeyUse::Unique, "remin", "da"));
        assert_ne!(key, EnqueuedKey::id_of(KeyUse::Unique, "remind", "b"));
    }
}
