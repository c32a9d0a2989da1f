//! The guide shows the statements of this dialect.

use super::form::{Form, Group, Role};
use super::statement::{folded, single};
use crate::db::ChangeKind::{Insert, Update};
use crate::db::eventlog::EVENTS;
use crate::db::fixtures::{change, table};
use crate::db::guide::{POSTGRES, WALLETS, assert_shown};
use crate::domain::{ColumnDef, ValueType};

fn db_type(column: &ColumnDef) -> &'static str {
    match column.ty {
        ValueType::Uuid => "uuid",
        ValueType::Text => "varchar",
        ValueType::Json => "jsonb",
        ValueType::Decimal => "numeric",
        ValueType::Int => "int8",
        ValueType::Bool => "bool",
        _ => "timestamp",
    }
}

#[test]
fn a_deposit_and_a_transfer_are_sent_as_the_guide_shows_them() {
    let (wallets, events) = (table(&WALLETS, db_type), table(&EVENTS, db_type));
    let deposit = single(&change(&wallets, Update), &change(&events, Insert));
    let groups = vec![
        Group { table: wallets, role: Role::Update },
        Group { table: events, role: Role::Insert },
    ];
    let transfer = folded(&Form { groups, fenced: false });
    assert_shown(POSTGRES, &[deposit, transfer]);
}
