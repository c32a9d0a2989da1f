//! The deliveries that are claimed.

use uuid::Uuid;

use super::{Delivery, DeliveryState};
use crate::db::{Arg, Database, DbError, Query, Route};
use crate::domain::{ColumnDef, Entity, State, Value, ValueType};

const HOLDER: &str = "look for claims";

const ID: &[ColumnDef] = &[ColumnDef::new("id", ValueType::Uuid)];

/// Selects claimed deliveries by the node that has claimed them.
#[derive(Debug, Clone)]
pub enum Claimant {
    /// Those of this node.
    Node(Uuid),
    /// Those of any other node than these.
    Other(Vec<Uuid>),
}

/// The ids of up to `most` claimed deliveries.
pub(crate) async fn claimed_rows(
    database: &Database,
    claimant: Claimant,
    most: usize,
) -> Result<Vec<Uuid>, DbError> {
    let table = database.table(Delivery::TABLE).await?;
    let syntax = database.driver.syntax();
    let node = table.column("node")?;
    let (condition, arg) = match claimant {
        Claimant::Node(id) => {
            let argument = syntax.argument(1, ValueType::Uuid, node);
            let is_node = format!("{} = {argument}", syntax.operand(node, ValueType::Uuid));
            (is_node, Arg::One(ValueType::Uuid, Value::Uuid(id)))
        }
        Claimant::Other(known) => {
            let known = known.into_iter().chain([Uuid::nil()]).map(Value::Uuid).collect();
            let is_known = syntax.any(1, ValueType::Uuid, node);
            (format!("NOT ({is_known})"), Arg::Many(ValueType::Uuid, known))
        }
    };
    // The state is a literal: only so does a server know that few rows have it.
    let sql = format!(
        "SELECT id FROM {} WHERE state = '{}' AND {condition} LIMIT {most}",
        syntax.table(Delivery::TABLE),
        DeliveryState::Claimed.as_str(),
    );
    let query = Query { sql: sql.into(), args: vec![arg], columns: ID.into() };
    let rows = database.fetch(&query, Route::Primary, HOLDER).await?;
    let id = |value| if let Value::Uuid(id) = value { Some(id) } else { None };
    Ok(rows.into_iter().flatten().filter_map(id).collect())
}
