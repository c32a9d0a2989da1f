//! The keys of idempotent calls: the call that used a key, and its output.
//!
//! The row of a key is on the key's home shard. It commits together with the call if the call
//! writes to its home; otherwise the row is a [claim](super::claims).

use chrono::{DateTime, Utc};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::cross_shard::parse_shards;
use crate::clock::to_micros;
use crate::db::eventlog::IDEMPOTENCY_KEYS;
use crate::db::{ActionId, Arg, ChangeKind, Database, DbError, Query, Route, Staged};
use crate::domain::{ShardIdentifier, Value, ValueType, list_shards};

/// A key, unique within its namespace and principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IdempotencyKey {
    pub(crate) namespace: String,
    /// Empty if the key belongs to no principal.
    pub(crate) principal: String,
    pub(crate) text: String,
}

impl IdempotencyKey {
    /// The condition on the primary key, and its arguments `$1` to `$3`.
    pub(super) const CONDITION: &str = "namespace = $1 AND principal = $2 AND idempotency_key = $3";

    pub(super) fn arguments(&self) -> Vec<Arg> {
        [&self.namespace, &self.principal, &self.text]
            .map(|text| Arg::One(ValueType::Text, Value::Text(text.clone())))
            .into()
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
            for text in [&self.namespace, &self.principal, &self.text] {
                hash.update((text.len() as u64).to_be_bytes());
                hash.update(text);
            }
            (hash.finalize(), *shard)
        })
    }
}

/// The row of a key.
pub(crate) struct KeyRecord<'a> {
    pub(crate) key: &'a IdempotencyKey,
    pub(crate) action_name: &'static str,
    pub(crate) fingerprint: &'a str,
    pub(crate) action: ActionId,
    pub(crate) output: String,
    pub(crate) created: DateTime<Utc>,
}

impl KeyRecord<'_> {
    /// `shards` are those on which the call commits, in this order, if it does not commit on the
    /// home only. `claim` is set if the home is not one of them.
    pub(crate) fn stage(self, shards: &[ShardIdentifier], claim: Option<Uuid>) -> Staged {
        let shards = (!shards.is_empty()).then(|| Value::Text(list_shards(shards)));
        let values = vec![
            Value::Text(self.key.namespace.clone()),
            Value::Text(self.key.principal.clone()),
            Value::Text(self.key.text.clone()),
            Value::Text(self.action_name.to_owned()),
            Value::Text(self.fingerprint.to_owned()),
            Value::Uuid(self.action.0),
            Value::Json(self.output),
            Value::Timestamp(to_micros(self.created)),
            shards.unwrap_or(Value::Null),
            claim.map_or(Value::Null, Value::Uuid),
        ];
        Staged {
            table: &IDEMPOTENCY_KEYS,
            kind: ChangeKind::Insert,
            id: Uuid::nil(),
            carries_shard: false,
            values,
        }
    }
}

/// The call that used a key.
pub(crate) struct StoredCall {
    pub(crate) action_name: String,
    pub(crate) fingerprint: String,
    pub(crate) action: ActionId,
    pub(crate) output: String,
    /// The shards on which it commits, in this order; empty if it is known to be complete.
    pub(crate) shards: Vec<ShardIdentifier>,
    /// If set, the first shard decides whether the call has committed.
    pub(crate) claim: Option<Uuid>,
}

/// The row of a key on this database.
pub(crate) async fn look_up(
    database: &Database,
    key: &IdempotencyKey,
    holder: &'static str,
) -> Result<Option<StoredCall>, DbError> {
    let query = Query {
        sql: format!(
            "SELECT action_name, fingerprint, action_id, output, created_date, shards, claim_id FROM {} WHERE {}",
            database.driver.syntax().table(&IDEMPOTENCY_KEYS),
            IdempotencyKey::CONDITION
        )
        .into(),
        args: key.arguments(),
        columns: IDEMPOTENCY_KEYS.columns[3..].into(),
    };
    let rows = database.fetch(&query, Route::Primary, holder).await?;
    rows.into_iter().next().map(stored_call).transpose()
}

fn stored_call(row: Vec<Value>) -> Result<StoredCall, DbError> {
    let misfit = || DbError::misfit("shards", "the row of an idempotency key cannot be read");
    let [
        Value::Text(action_name),
        Value::Text(fingerprint),
        Value::Uuid(action),
        Value::Json(output),
        _,
        shards,
        claim,
    ] = <[Value; 7]>::try_from(row).map_err(|_| misfit())?
    else {
        return Err(misfit());
    };
    let shards = match shards {
        Value::Text(shards) => parse_shards(&shards).ok_or_else(misfit)?,
        _ => Vec::new(),
    };
    let claim = if let Value::Uuid(claim) = claim { Some(claim) } else { None };
    Ok(StoredCall { action_name, fingerprint, action: ActionId(action), output, shards, claim })
}

/// Identifies a call by its action and parameters, regardless of the order of JSON keys.
pub(crate) fn fingerprint(action: &str, params: &Json) -> String {
    let mut hash = Sha256::new();
    hash.update(action.as_bytes());
    hash.update([0]);
    digest(params, &mut hash);
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn digest(value: &Json, hash: &mut Sha256) {
    match value {
        Json::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            hash.update([b'{']);
            for (key, value) in entries {
                hash.update(Json::from(key.as_str()).to_string());
                digest(value, hash);
            }
            hash.update([b'}']);
        }
        Json::Array(list) => {
            hash.update([b'[']);
            list.iter().for_each(|value| digest(value, hash));
            hash.update([b']']);
        }
        scalar => {
            hash.update(scalar.to_string());
            hash.update([b',']);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;

    use super::*;

    fn shards(count: u32) -> impl Iterator<Item = ShardIdentifier> + Clone {
        (0..count).map(|member| ShardIdentifier::new(0, member).unwrap())
    }

    fn key(n: u32) -> IdempotencyKey {
        IdempotencyKey { namespace: "a".into(), principal: String::new(), text: n.to_string() }
    }

    #[test]
    fn every_shard_is_the_home_of_some_keys_and_a_new_shard_takes_only_its_own() {
        let mut homes = BTreeMap::<_, u32>::new();
        for key in (0..300).map(key) {
            let home = key.home(shards(3)).unwrap();
            *homes.entry(home).or_default() += 1;
            let later = key.home(shards(4)).unwrap();
            assert!(later == home || later.member() == 3, "{home} became {later}");
        }
        assert!(homes.len() == 3 && homes.values().all(|count| *count > 50), "{homes:?}");
    }

    #[test]
    fn the_home_depends_on_where_a_text_ends() {
        let keys = (0..64).map(|n| {
            let (principal, text) = ("x".repeat(n), "x".repeat(64 - n));
            IdempotencyKey { namespace: "a".into(), principal, text }
        });
        let homes: Vec<_> = keys.map(|key| key.home(shards(3))).collect();
        assert!(homes.iter().any(|home| *home != homes[0]));
    }

    #[test]
    fn a_fingerprint_depends_on_action_and_values_but_not_on_the_order_of_keys() {
        let first = fingerprint("a", &json!({"x": 1, "y": [1, 2]}));
        assert_eq!(first, fingerprint("a", &json!({"y": [1, 2], "x": 1})));
        assert_ne!(first, fingerprint("b", &json!({"x": 1, "y": [1, 2]})));
        assert_ne!(first, fingerprint("a", &json!({"x": 1, "y": [12]})));
        assert_ne!(fingerprint("a", &json!({"x": "1"})), fingerprint("a", &json!({"x": 1})));
        assert_ne!(
            fingerprint("a", &json!({"x": [[1], 2]})),
            fingerprint("a", &json!({"x": [1, [2]]}))
        );
    }
}
