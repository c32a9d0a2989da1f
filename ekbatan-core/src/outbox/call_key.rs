//! What makes a call the only one: an idempotency key, or the message that the call handles.
//!
//! Each has a table of its own. The rows of both tables are claimed, decided and looked up in the
//! same way.

use sha2::{Digest, Sha256};

use crate::db::Arg;
use crate::db::eventlog::{IDEMPOTENCY_KEYS, INBOX};
use crate::domain::{ShardIdentifier, Table, Value, ValueType};

/// What a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum KeyKind {
    /// The caller's own, for a call that returns its output again.
    Idempotency,
    /// The id of a message.
    Message,
}

/// A key, unique within its kind, namespace and scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallKey {
    pub(crate) kind: KeyKind,
    pub(crate) namespace: String,
    /// The principal, empty for a key that belongs to none; or the consumer of a message.
    pub(crate) scope: String,
    pub(crate) text: String,
}

impl CallKey {
    pub(super) fn table(&self) -> &'static Table {
        match self.kind {
            KeyKind::Idempotency => &IDEMPOTENCY_KEYS,
            KeyKind::Message => &INBOX,
        }
    }

    /// What errors call it.
    pub(crate) fn noun(&self) -> &'static str {
        match self.kind {
            KeyKind::Idempotency => "idempotency key",
            KeyKind::Message => "message",
        }
    }

    /// The condition on the primary key, with the arguments `$1` to `$3`.
    pub(super) fn condition(&self) -> &'static str {
        match self.kind {
            KeyKind::Idempotency => "namespace = $1 AND principal = $2 AND idempotency_key = $3",
            KeyKind::Message => "namespace = $1 AND consumer = $2 AND message_id = $3",
        }
    }

    pub(super) fn arguments(&self) -> Vec<Arg> {
        let argument = |text: &String| Arg::One(ValueType::Text, Value::Text(text.clone()));
        [&self.namespace, &self.scope, &self.text].map(argument).into()
    }

    /// The shard, of several, on which the row of the key is: the one with the greatest hash of
    /// shard and key. If a shard is added, only keys whose new home it is change their home.
    pub(crate) fn home(
        &self,
        shards: impl Iterator<Item = ShardIdentifier>,
    ) -> Option<ShardIdentifier> {
        shards.max_by_key(|shard| {
            let mut hash = Sha256::new();
            hash.update([shard.group(), shard.member()]);
            for text in [&self.namespace, &self.scope, &self.text] {
                hash.update((text.len() as u64).to_be_bytes());
                hash.update(text);
            }
            (hash.finalize(), *shard)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn shards(count: u32) -> impl Iterator<Item = ShardIdentifier> + Clone {
        (0..count).map(|member| ShardIdentifier::new(0, member).unwrap())
    }

    fn key(scope: &str, text: String) -> CallKey {
        let (kind, namespace) = (KeyKind::Idempotency, "a".to_owned());
        CallKey { kind, namespace, scope: scope.to_owned(), text }
    }

    #[test]
    fn every_shard_is_the_home_of_some_keys_and_a_new_shard_takes_only_its_own() {
        let mut homes = BTreeMap::<_, u32>::new();
        for key in (0..300).map(|n: u32| key("", n.to_string())) {
            let home = key.home(shards(3)).unwrap();
            *homes.entry(home).or_default() += 1;
            let later = key.home(shards(4)).unwrap();
            assert!(later == home || later.member() == 3, "{home} became {later}");
        }
        assert!(homes.len() == 3 && homes.values().all(|count| *count > 50), "{homes:?}");
    }

    #[test]
    fn the_home_depends_on_where_a_text_ends() {
        let keys = (0..64).map(|n| key(&"x".repeat(n), "x".repeat(64 - n)));
        let homes: Vec<_> = keys.map(|key| key.home(shards(3))).collect();
        assert!(homes.iter().any(|home| *home != homes[0]));
    }
}
