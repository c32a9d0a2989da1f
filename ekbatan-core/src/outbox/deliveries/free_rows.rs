//! The deliveries that no other transaction keeps locked.

use std::collections::HashSet;

use uuid::Uuid;

use super::Delivery;
use crate::db::{Arg, DbError, Query, Transaction};
use crate::domain::{ColumnDef, Entity, Value, ValueType};

const ID: &[ColumnDef] = &[ColumnDef::new("id", ValueType::Uuid)];

/// Those of these deliveries that are there and that no other transaction keeps locked. Nothing waits for
/// a lock.
pub(crate) async fn free_rows(
    transaction: &Transaction,
    ids: Vec<Uuid>,
) -> Result<HashSet<Uuid>, DbError> {
    let database = transaction.database();
    let syntax = database.driver.syntax();
    let table = transaction.table(Delivery::TABLE).await?;
    let chosen = syntax.any(1, ValueType::Uuid, table.column("id")?);
    let mut sql = format!("SELECT id FROM {} WHERE {chosen}", syntax.table(Delivery::TABLE));
    if !database.driver.capabilities().single_writer {
        sql += " FOR UPDATE SKIP LOCKED";
    }
    let args = vec![Arg::Many(ValueType::Uuid, ids.into_iter().map(Value::Uuid).collect())];
    let query = Query { sql: sql.into(), args, columns: ID.into() };
    let id = |value| if let Value::Uuid(id) = value { Some(id) } else { None };
    Ok(transaction.fetch(&query).await?.into_iter().flatten().filter_map(id).collect())
}
