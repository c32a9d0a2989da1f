//! The deliveries that are claimed.

use uuid::Uuid;

use super::{Delivery, DeliveryState};
use crate::db::{Arg, Database, DbError, Query};
use crate::domain::{ColumnDef, Entity, State, Value, ValueType};

const HOLDER: &str = "look for claims";

const ID: &[ColumnDef] = &[ColumnDef::new("id", ValueType::Uuid)];

/// Selects claimed deliveries by the node that has claimed them.
#[derive(Debug, Clone)]
pub enum Claimant {
    /// Those of this node.
    Node(Uuid),
    /// Those of any other node than these, for these handlers.
    Other(Vec<Uuid>, OfHandlers),
}

/// Selects deliveries by the stored names of their handlers.
#[derive(Debug, Clone)]
pub enum OfHandlers {
    /// Those of these.
    Among(Vec<String>),
    /// Those of any other.
    Except(Vec<String>),
}

/// The ids of up to `most` claimed deliveries.
pub(crate) async fn claimed_rows(
    database: &Database,
    claimant: Claimant,
    most: usize,
) -> Result<Vec<Uuid>, DbError> {
    if matches!(&claimant, Claimant::Other(_, OfHandlers::Among(names)) if names.is_empty()) {
        return Ok(Vec::new());
    }
    let table = database.table(Delivery::TABLE).await?;
    let syntax = database.driver.syntax();
    let node = table.column("node")?;
    let (condition, args) = match claimant {
        Claimant::Node(id) => {
            let argument = syntax.argument(1, ValueType::Uuid, node);
            let is_node = format!("{} = {argument}", syntax.operand(node, ValueType::Uuid));
            (is_node, vec![Arg::One(ValueType::Uuid, Value::Uuid(id))])
        }
        Claimant::Other(known, handlers) => {
            let known = known.into_iter().chain([Uuid::nil()]).map(Value::Uuid).collect();
            let is_known = syntax.any(1, ValueType::Uuid, node);
            let mut condition = format!("NOT ({is_known})");
            let mut args = vec![Arg::Many(ValueType::Uuid, known)];
            let is_of = syntax.any(2, ValueType::Text, table.column("handler")?);
            let (names, of_handlers) = match handlers {
                OfHandlers::Among(names) => (names, is_of),
                OfHandlers::Except(names) => (names, format!("NOT ({is_of})")),
            };
            if !names.is_empty() {
                condition = format!("{condition} AND {of_handlers}");
                args.push(Arg::Many(ValueType::Text, names.into_iter().map(Value::Text).collect()));
            }
            (condition, args)
        }
    };
    // The state is a literal: only so does a server know that few rows have it.
    let sql = format!(
        "SELECT id FROM {} WHERE state = '{}' AND {condition} LIMIT {most}",
        syntax.table(Delivery::TABLE),
        DeliveryState::Claimed.as_str(),
    );
    let query = Query { sql: sql.into(), args, columns: ID.into() };
    let rows = database.look(&query, HOLDER).await?;
    let id = |value| if let Value::Uuid(id) = value { Some(id) } else { None };
    Ok(rows.into_iter().flatten().filter_map(id).collect())
}
