//! The keys of idempotent calls: the call that used a key, and its output.

use chrono::{DateTime, Utc};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::clock::to_micros;
use crate::db::eventlog::IDEMPOTENCY_KEYS;
use crate::db::{ActionId, Arg, ChangeKind, Database, DbError, Query, Route, Staged};
use crate::domain::{Value, ValueType};

/// A key and the output of its call, stored with the call's commit.
pub(crate) struct KeyRecord<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) key: &'a str,
    pub(crate) action_name: &'static str,
    pub(crate) fingerprint: &'a str,
    pub(crate) action: ActionId,
    pub(crate) output: String,
    pub(crate) created: DateTime<Utc>,
}

impl KeyRecord<'_> {
    pub(crate) fn stage(self) -> Staged {
        let values = vec![
            Value::Text(self.namespace.to_owned()),
            Value::Text(self.key.to_owned()),
            Value::Text(self.action_name.to_owned()),
            Value::Text(self.fingerprint.to_owned()),
            Value::Uuid(self.action.0),
            Value::Json(self.output),
            Value::Timestamp(to_micros(self.created)),
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
pub(crate) struct Answered {
    pub(crate) action_name: String,
    pub(crate) fingerprint: String,
    pub(crate) action: ActionId,
    pub(crate) output: String,
}

pub(crate) async fn look_up(
    database: &Database,
    namespace: &str,
    key: &str,
    holder: &'static str,
) -> Result<Option<Answered>, DbError> {
    let query = Query {
        sql: format!(
            "SELECT action_name, fingerprint, action_id, output FROM {} WHERE namespace = $1 AND idempotency_key = $2",
            database.driver.syntax().table(&IDEMPOTENCY_KEYS)
        ).into(),
        args: [namespace, key]
            .map(|text| Arg::One(ValueType::Text, Value::Text(text.to_owned())))
            .into(),
        columns: IDEMPOTENCY_KEYS.columns[2..6].into(),
    };
    let rows = database.fetch(&query, Route::Primary, holder).await?;
    Ok(rows.into_iter().next().and_then(|row| match <[Value; 4]>::try_from(row) {
        Ok(
            [
                Value::Text(action_name),
                Value::Text(fingerprint),
                Value::Uuid(action),
                Value::Json(output),
            ],
        ) => Some(Answered { action_name, fingerprint, action: ActionId(action), output }),
        _ => None,
    }))
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
    use super::fingerprint;
    use serde_json::json;

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
