//! The rows of keys: the call that used an idempotency key, and its output; or the call that
//! handled a message.
//!
//! The row of a key is on the key's home shard. It commits together with the call if the call
//! writes to its home; otherwise the row is a [claim](super::claims).

use chrono::{DateTime, Utc};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::CallKey;
use super::cross_shard::parse_shards;
use crate::clock::to_micros;
use crate::db::{ActionId, ChangeKind, Database, DbError, Query, Route, Staged};
use crate::domain::{ShardIdentifier, Value, list_shards};

/// The row of a key.
pub(crate) struct KeyRecord<'a> {
    pub(crate) key: &'a CallKey,
    pub(crate) action: ActionId,
    pub(crate) created: DateTime<Utc>,
    /// `None` for a message.
    pub(crate) output: Option<StoredOutput>,
}

/// What a repeated call with an idempotency key is compared with, and what it returns.
pub(crate) struct StoredOutput {
    pub(crate) action_name: String,
    pub(crate) fingerprint: String,
    pub(crate) output: String,
}

impl KeyRecord<'_> {
    /// `shards` are those on which the call commits, in this order, if it does not commit on the
    /// home only. `claim` is set if the home is not one of them.
    pub(crate) fn stage(self, shards: &[ShardIdentifier], claim: Option<Uuid>) -> Staged {
        let Self { key, action, created, output } = self;
        let mut values = Vec::with_capacity(key.table().columns.len());
        values
            .extend([&key.namespace, &key.scope, &key.text].map(|text| Value::Text(text.clone())));
        let (called, returned) = match output {
            Some(StoredOutput { action_name, fingerprint, output }) => {
                let called = [Value::Text(action_name), Value::Text(fingerprint)];
                (Some(called), Some(Value::Json(output)))
            }
            None => (None, None),
        };
        values.extend(called.into_iter().flatten());
        values.push(Value::Uuid(action.0));
        values.extend(returned);
        values.push(Value::Timestamp(to_micros(created)));
        let shards = (!shards.is_empty()).then(|| Value::Text(list_shards(shards)));
        values.push(shards.unwrap_or(Value::Null));
        values.push(claim.map_or(Value::Null, Value::Uuid));
        Staged {
            table: key.table(),
            kind: ChangeKind::Insert,
            id: Uuid::nil(),
            carries_shard: false,
            values,
        }
    }
}

/// The call that used a key.
pub(crate) struct StoredCall {
    pub(crate) action: ActionId,
    /// `None` if the call handled a message.
    pub(crate) output: Option<StoredOutput>,
    /// The shards on which it commits, in this order; empty if it is known to be complete.
    pub(crate) shards: Vec<ShardIdentifier>,
    /// If set, the first shard decides whether the call has committed.
    pub(crate) claim: Option<Uuid>,
}

/// The row of a key on this database.
pub(crate) async fn look_up(
    database: &Database,
    key: &CallKey,
    holder: &'static str,
) -> Result<Option<StoredCall>, DbError> {
    let table = key.table();
    // Without the key itself.
    let columns = &table.columns[3..];
    let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
    let query = Query {
        sql: format!(
            "SELECT {} FROM {} WHERE {}",
            names.join(", "),
            database.driver.syntax().table(table),
            key.condition()
        )
        .into(),
        args: key.arguments(),
        columns: columns.into(),
    };
    let rows = database.fetch(&query, Route::Primary, holder).await?;
    let misfit =
        || DbError::misfit("shards", format!("the row of the {} cannot be read", key.noun()));
    rows.into_iter().next().map(|row| stored_call(row).ok_or_else(misfit)).transpose()
}

/// `None` if the row cannot be read.
fn stored_call(mut row: Vec<Value>) -> Option<StoredCall> {
    let at_the_end = row.len().checked_sub(3)?;
    let [_, shards, claim] = <[Value; 3]>::try_from(row.split_off(at_the_end)).ok()?;
    let (action, output) = match <[Value; 4]>::try_from(row) {
        Ok(
            [
                Value::Text(action_name),
                Value::Text(fingerprint),
                Value::Uuid(action),
                Value::Json(output),
            ],
        ) => (action, Some(StoredOutput { action_name, fingerprint, output })),
        Err(row) => match row[..] {
            [Value::Uuid(action)] => (action, None),
            _ => return None,
        },
        Ok(_) => return None,
    };
    let shards = match shards {
        Value::Text(shards) => parse_shards(&shards)?,
        _ => Vec::new(),
    };
    let claim = if let Value::Uuid(claim) = claim { Some(claim) } else { None };
    Some(StoredCall { action: ActionId(action), output, shards, claim })
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
    use serde_json::json;

    use super::*;

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
