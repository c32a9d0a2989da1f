//! The guide shows the statements of this dialect.

use chrono::{DateTime, Utc};
use rust_decimal::Decimal;
use uuid::Uuid;

use super::flavour::Flavour;
use super::statement::{guard, insert_into, insert_row, update};
use super::syntax::MySqlSyntax;
use crate::db::ChangeKind::{Insert, Update};
use crate::db::RowChange;
use crate::db::eventlog::EVENTS;
use crate::db::fixtures::{change, table};
use crate::db::guide::{MYSQL, WALLETS, assert_shown};
use crate::domain::{ColumnDef, Value, ValueType};

fn db_type(column: &ColumnDef) -> &'static str {
    match column.ty {
        ValueType::Uuid => "char(36)",
        ValueType::Text => "varchar(255)",
        ValueType::Json => "json",
        ValueType::Decimal => "decimal(20,2)",
        ValueType::Int => "bigint",
        ValueType::Bool => "tinyint(1)",
        _ => "datetime(6)",
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn json(text: &str) -> Value {
    Value::Json(text.to_owned())
}

#[test]
fn a_deposit_is_sent_as_the_guide_shows_it() {
    let syntax = MySqlSyntax { flavour: Flavour::MySql, eventlog: "eventlog".to_owned() };
    let id = |n: u128| Uuid::from_u128(0x019c_1392_2c00_7000_8000_0000_0000_0000 + n);
    let time: DateTime<Utc> = "2026-01-31T12:00:00Z".parse().unwrap();
    let time = Value::Timestamp(time);

    let (owner, currency, state) = (text("alice"), text("EUR"), text("OPEN"));
    let balance = Value::Decimal(Decimal::new(500, 2));
    let version = Value::Int(1);
    let wallet = RowChange {
        id: id(1),
        values: vec![
            Value::Uuid(id(1)),
            owner,
            currency,
            balance,
            state,
            version,
            time.clone(),
            time.clone(),
        ]
        .into(),
        ..change(&table(&WALLETS, db_type), Update)
    };
    let event = RowChange {
        values: vec![
            Value::Uuid(id(3)),
            text("com.example.wallet"),
            Value::Uuid(id(2)),
            text("wallet.deposit_money"),
            json(&format!(r#"{{"amount":"5","wallet":"{}"}}"#, id(1))),
            time.clone(),
            time.clone(),
            text(&id(1).to_string()),
            text("Wallet"),
            text("WalletMoneyDeposited"),
            json(r#"{"amount":"5","balance":"5"}"#),
            time,
            Value::Bool(false),
            text("alice"),
            Value::Null,
            Value::Null,
            Value::Int(2),
            Value::Int(0),
            Value::Int(1),
            Value::Int(0),
        ]
        .into(),
        ..change(&table(&EVENTS, db_type), Insert)
    };
    let sent = [
        update(&syntax, &[&wallet]).unwrap(),
        guard(1),
        insert_into(&syntax, &event.table) + &insert_row(&event).unwrap(),
        "COMMIT".to_owned(),
    ];
    assert_shown(MYSQL, &[sent.join("; ")]);
}
