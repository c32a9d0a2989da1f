//! Tables, columns and rows for the tests of the dialects.

use std::sync::Arc;

use uuid::Uuid;

use super::{ChangeKind, ColumnInfo, Nulls, RowChange, Rules, TableInfo};
use crate::domain::{ColumnDef, Table, ValueType};

pub(super) static WALLETS: Table = Table {
    schema: None,
    name: "wallets",
    model: "Wallet",
    columns: &[
        ColumnDef::new("id", ValueType::Uuid),
        ColumnDef::new("balance", ValueType::Decimal),
        ColumnDef::new("version", ValueType::Int),
        ColumnDef::new("created_date", ValueType::Timestamp),
        ColumnDef::new("updated_date", ValueType::Timestamp),
    ],
    version: Some(2),
    dates: Some(3),
    state: None,
};

/// The outbox, cut down to two columns.
#[cfg(any(feature = "postgres", feature = "sqlite"))]
pub(super) static SHORT_EVENTS: Table = Table {
    schema: Some("eventlog"),
    name: "events",
    model: "outbox",
    columns: &[ColumnDef::new("id", ValueType::Uuid), ColumnDef::new("payload", ValueType::Json)],
    version: None,
    dates: None,
    state: None,
};

pub(super) fn column(name: &str, db_type: &str) -> ColumnInfo {
    ColumnInfo {
        name: name.to_owned(),
        db_type: db_type.to_owned(),
        numeric: None,
        length: None,
        is_enum: false,
        is_padded: false,
        nulls: Nulls::Refused,
        required: true,
        is_computed: false,
        references: Vec::new(),
    }
}

/// A table whose columns have the types that `db_type` returns.
pub(super) fn table(
    table: &'static Table,
    db_type: impl Fn(&ColumnDef) -> &'static str,
) -> Arc<TableInfo> {
    let columns = table.columns.iter().map(|of| column(of.name, db_type(of)));
    let (columns, rules) = (columns.collect(), Rules::default());
    let (by_id, by_ids) = Default::default();
    Arc::new(TableInfo { table, columns, rules, uninsertable: Vec::new(), by_id, by_ids })
}

/// A change without values.
#[cfg_attr(not(any(feature = "postgres", feature = "mysql")), allow(dead_code))]
pub(super) fn change(table: &Arc<TableInfo>, kind: ChangeKind) -> RowChange {
    RowChange { table: table.clone(), kind, id: Uuid::nil(), values: Default::default(), steps: 1 }
}
