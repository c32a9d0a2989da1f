//! Reading and binding the rows of a deposit by hand. An id column is text in MySQL and
//! `uuid` in MariaDB; both accept and return text.

use ekbatan::prelude::*;
use sqlx::mysql::MySqlArguments;
use sqlx::query::Query;
use sqlx::{MySql as Dialect, MySqlConnection, Row};

use crate::commit::rows::{DepositEvent, NAMESPACE, PRINCIPAL, WalletRow};
use crate::failure::Failure;

const SELECT: &str = "SELECT id, owner, currency, balance, state, version, created_date, updated_date \
                      FROM wallets WHERE id = ? AND state <> 'DELETED'";

type Date = chrono::NaiveDateTime;

pub async fn read(connection: &mut MySqlConnection, wallet: Uuid) -> Result<WalletRow, Failure> {
    let row = sqlx::query(SELECT).bind(wallet.to_string()).fetch_one(connection).await?;
    let _ = Uuid::try_parse_ascii(row.try_get_unchecked(0)?)?;
    let _: (Date, Date) = (row.try_get(6)?, row.try_get(7)?);
    Ok(WalletRow {
        owner: row.try_get(1)?,
        currency: row.try_get(2)?,
        balance: row.try_get(3)?,
        state: row.try_get(4)?,
        version: row.try_get(5)?,
    })
}

pub fn bind_row<'q>(
    query: Query<'q, Dialect, MySqlArguments>,
    wallet: Uuid,
    row: &'q WalletRow,
    event: &DepositEvent,
) -> Query<'q, Dialect, MySqlArguments> {
    query
        .bind(&row.owner)
        .bind(&row.currency)
        .bind(row.balance)
        .bind(&row.state)
        .bind(event.completed.naive_utc())
        .bind(wallet.to_string())
        .bind(row.version)
}

pub fn bind_event<'q>(
    query: Query<'q, Dialect, MySqlArguments>,
    wallet: Uuid,
    row: &WalletRow,
    event: &'q DepositEvent,
) -> Query<'q, Dialect, MySqlArguments> {
    query
        .bind(event.id.to_string())
        .bind(NAMESPACE)
        .bind(event.action.to_string())
        .bind("wallet.deposit_money")
        .bind(&event.params)
        .bind(event.started.naive_utc())
        .bind(event.completed.naive_utc())
        .bind(wallet.to_string())
        .bind("Wallet")
        .bind("WalletMoneyDeposited")
        .bind(&event.payload)
        .bind(event.completed.naive_utc())
        .bind(false)
        .bind(PRINCIPAL)
        .bind(None::<String>)
        .bind(None::<String>)
        .bind(row.version + 1)
        .bind(0_i32)
        .bind(1_i32)
}
