//! The parts of actions that commit on several shards.
//!
//! Invariants:
//! - Each shard's part of such an action commits together with a row that names all of its shards,
//!   in the order in which they commit. Whatever happens between two commits, even a crash of the
//!   process, the existing rows show which parts are missing.
//! - A row says that its shard and all shards before it have committed. The rows are deleted once all
//!   parts are committed, that of the last shard after the others. So the rows that are left of a complete
//!   action include the row of its last shard, and show that it is complete, even after its events are deleted.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::clock::to_micros;
use crate::db::eventlog::CROSS_SHARD_PARTS;
use crate::db::{ActionId, Arg, ChangeKind, Database, DbError, Query, Route, Staged};
use crate::domain::{ShardIdentifier, Value, ValueType};

/// One shard's part of an action.
#[derive(Debug, Clone)]
pub(crate) struct Part {
    pub(crate) action: ActionId,
    pub(crate) shard: ShardIdentifier,
    /// All shards, in the order in which they commit.
    pub(crate) shards: Vec<ShardIdentifier>,
    pub(crate) namespace: String,
    pub(crate) action_name: String,
    pub(crate) committed: DateTime<Utc>,
}

impl Part {
    pub(crate) fn stage(self) -> Staged {
        let values = vec![
            Value::Uuid(self.action.0),
            Value::Text(self.shard.to_string()),
            Value::Text(crate::domain::list_shards(&self.shards)),
            Value::Text(self.namespace),
            Value::Text(self.action_name),
            Value::Timestamp(to_micros(self.committed)),
        ];
        Staged {
            table: &CROSS_SHARD_PARTS,
            kind: ChangeKind::Insert,
            id: Uuid::nil(),
            carries_shard: false,
            values,
        }
    }

    /// The position of its shard in the order in which they commit.
    pub(crate) fn position(&self) -> usize {
        self.shards.iter().position(|shard| *shard == self.shard).unwrap_or_default()
    }

    /// `None` if the row cannot be parsed.
    fn read(row: Vec<Value>) -> Option<Self> {
        let [
            Value::Uuid(action),
            Value::Text(shard),
            Value::Text(shards),
            Value::Text(namespace),
            Value::Text(action_name),
            Value::Timestamp(committed),
        ] = <[Value; 6]>::try_from(row).ok()?
        else {
            return None;
        };
        Some(Self {
            action: ActionId(action),
            shard: parse(&shard)?,
            shards: parse_shards(&shards)?,
            namespace,
            action_name,
            committed,
        })
    }
}

/// The shards of a list such as `0/0, 0/1`.
pub(super) fn parse_shards(shards: &str) -> Option<Vec<ShardIdentifier>> {
    shards.split(", ").map(parse).collect()
}

fn parse(shard: &str) -> Option<ShardIdentifier> {
    let (group, member) = shard.split_once('/')?;
    ShardIdentifier::new(group.parse().ok()?, member.parse().ok()?).ok()
}

/// The parts that this database has, of one action or of all.
pub(crate) async fn parts(
    database: &Database,
    action: Option<ActionId>,
) -> Result<Vec<Part>, DbError> {
    let names: Vec<&str> = CROSS_SHARD_PARTS.columns.iter().map(|column| column.name).collect();
    let syntax = database.driver.syntax();
    let filter = if action.is_some() { " WHERE action_id = $1" } else { "" };
    let query = Query {
        sql: format!(
            "SELECT {} FROM {}{filter}",
            names.join(", "),
            syntax.table(&CROSS_SHARD_PARTS)
        )
        .into(),
        args: action.iter().map(argument).collect(),
        columns: CROSS_SHARD_PARTS.columns.into(),
    };
    let rows = database.fetch(&query, Route::Primary, "cross-shard parts").await?;
    Ok(rows.into_iter().filter_map(Part::read).collect())
}

/// Deletes the parts of an action.
pub(crate) async fn forget(database: &Database, action: ActionId) -> Result<(), DbError> {
    database.check_not_beside_transaction()?;
    let table = database.driver.syntax().table(&CROSS_SHARD_PARTS);
    let query = Query {
        sql: format!("DELETE FROM {table} WHERE action_id = $1").into(),
        args: vec![argument(&action)],
        columns: Vec::new().into(),
    };
    database.fetch(&query, Route::Primary, "cross-shard parts").await.map(drop)
}

fn argument(action: &ActionId) -> Arg {
    Arg::One(ValueType::Uuid, Value::Uuid(action.0))
}
