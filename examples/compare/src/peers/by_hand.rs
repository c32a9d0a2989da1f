//! Hand-written deposits with sqlx in their usual form: a pool, a transaction, and only
//! the required columns of the row.
//!
//! The code is a macro, because the drivers share no types. Per driver, only the start of
//! a transaction and the format of values differ.

use ekbatan::prelude::*;
use serde_json::Value;
use sqlx::Row;
use sqlx::query::Query;

use super::convert::{as_is, decimal_text, naive, text};
use super::event::{ACTION, EVENT, EventRow, MODEL};
use super::retry::is_transient;
use super::statements;
use crate::contender::Contender;
use crate::failure::Failure;
use crate::money::{NAMESPACE, PRINCIPAL, timestamp};
use crate::strategy::Strategy;

macro_rules! by_hand {
    (
        $name:ident, $Db:ty, $Pool:ty, $Row:ty, $Arguments:ty, $statements:ident, begin: $begin:literal,
        id: $id:expr, money: $money:expr, date: $date:expr, json: $json:expr, balance: $balance:expr,
        $(blind: $blind:ident)?
    ) => {
        pub mod $name {
            use super::*;

            const SQL: statements::DepositSql = statements::$statements;

            pub struct ByHand {
                pool: $Pool,
                strategy: Strategy,
            }

            /// The outcome of one attempt.
            enum Tried {
                Committed,
                Stale,
            }

            #[async_trait::async_trait]
            impl Contender for ByHand {
                async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<u32, Failure> {
                    let started = Utc::now();
                    for attempts in 1.. {
                        let tried = match self.strategy {
                            Strategy::SqlxForUpdate => self.locked(started, wallet, amount).await,
                            Strategy::SqlxVersion => self.versioned(started, wallet, amount).await,
                            _ => self.blind(started, wallet, amount).await,
                        };
                        match tried {
                            Ok(Tried::Committed) => return Ok(attempts),
                            Ok(Tried::Stale) => {}
                            Err(error) if is_transient(&error) => {}
                            Err(error) => return Err(error.into()),
                        }
                    }
                    Err("a deposit was tried more than 2^32 times".into())
                }

                async fn close(&self) {
                    self.pool.close().await;
                }
            }

            impl ByHand {
                pub const fn new(pool: $Pool, strategy: Strategy) -> Self {
                    Self { pool, strategy }
                }

                /// BEGIN, SELECT .. FOR UPDATE, UPDATE, INSERT, COMMIT.
                async fn locked(
                    &self,
                    started: DateTime<Utc>,
                    wallet: Uuid,
                    amount: Decimal,
                ) -> Result<Tried, sqlx::Error> {
                    let mut transaction = self.pool.begin_with($begin).await?;
                    let query = sqlx::query(SQL.read_for_update).bind($id(wallet));
                    let (balance, version) = row(&query.fetch_one(&mut *transaction).await?)?;
                    self.write(transaction, started, wallet, amount, balance, version).await
                }

                /// SELECT, then BEGIN, UPDATE .. WHERE version = .., INSERT, COMMIT.
                async fn versioned(
                    &self,
                    started: DateTime<Utc>,
                    wallet: Uuid,
                    amount: Decimal,
                ) -> Result<Tried, sqlx::Error> {
                    let query = sqlx::query(SQL.read).bind($id(wallet));
                    let (balance, version) = row(&query.fetch_one(&self.pool).await?)?;
                    let transaction = self.pool.begin_with($begin).await?;
                    self.write(transaction, started, wallet, amount, balance, version).await
                }

                async fn write(
                    &self,
                    mut transaction: sqlx::Transaction<'_, $Db>,
                    started: DateTime<Utc>,
                    wallet: Uuid,
                    amount: Decimal,
                    balance: Decimal,
                    version: i64,
                ) -> Result<Tried, sqlx::Error> {
                    let balance = balance + amount;
                    let event = EventRow::new(started, wallet, amount, Some(balance));
                    let updated = sqlx::query(SQL.update)
                        .bind($money(balance))
                        .bind($date(&event.completed))
                        .bind($id(wallet))
                        .bind(version)
                        .execute(&mut *transaction)
                        .await?;
                    if updated.rows_affected() == 0 {
                        transaction.rollback().await?;
                        return Ok(Tried::Stale);
                    }
                    let query = bind(sqlx::query(SQL.insert), &event).bind(version + 1);
                    query.execute(&mut *transaction).await?;
                    transaction.commit().await?;
                    Ok(Tried::Committed)
                }

                by_hand!(@blind $id, $money, $date, $begin, $($blind)?);
            }

            fn row(row: &$Row) -> Result<(Decimal, i64), sqlx::Error> {
                Ok(($balance(row)?, row.try_get(1)?))
            }

            /// Binds the columns of an event up to the payload.
            fn bind<'q>(
                query: Query<'q, $Db, $Arguments>,
                event: &'q EventRow,
            ) -> Query<'q, $Db, $Arguments> {
                query
                    .bind($id(event.id))
                    .bind(NAMESPACE)
                    .bind($id(event.action))
                    .bind(ACTION)
                    .bind($json(&event.params))
                    .bind($date(&event.started))
                    .bind($date(&event.completed))
                    .bind(event.wallet.to_string())
                    .bind(MODEL)
                    .bind(EVENT)
                    .bind($date(&event.completed))
                    .bind(false)
                    .bind(PRINCIPAL)
                    .bind(0_i32)
                    .bind(1_i32)
                    .bind($json(&event.payload))
            }
        }
    };
    // UPDATE and INSERT in one statement.
    (@blind $id:expr, $money:expr, $date:expr, $begin:literal, $both:ident) => {
        async fn blind(
            &self,
            started: DateTime<Utc>,
            wallet: Uuid,
            amount: Decimal,
        ) -> Result<Tried, sqlx::Error> {
            let event = EventRow::new(started, wallet, amount, None);
            bind(sqlx::query(statements::$both), &event)
                .bind($id(wallet))
                .bind($money(amount))
                .bind($date(&event.completed))
                .execute(&self.pool)
                .await?;
            Ok(Tried::Committed)
        }
    };
    // BEGIN, UPDATE, INSERT, COMMIT.
    (@blind $id:expr, $money:expr, $date:expr, $begin:literal,) => {
        async fn blind(
            &self,
            started: DateTime<Utc>,
            wallet: Uuid,
            amount: Decimal,
        ) -> Result<Tried, sqlx::Error> {
            let event = EventRow::new(started, wallet, amount, None);
            let mut transaction = self.pool.begin_with($begin).await?;
            sqlx::query(SQL.add)
                .bind($money(amount))
                .bind($date(&event.completed))
                .bind($id(wallet))
                .execute(&mut *transaction)
                .await?;
            let query = bind(sqlx::query(SQL.insert_after), &event).bind($id(wallet));
            query.execute(&mut *transaction).await?;
            transaction.commit().await?;
            Ok(Tried::Committed)
        }
    };
}

by_hand!(
    postgres, sqlx::Postgres, sqlx::PgPool, sqlx::postgres::PgRow, sqlx::postgres::PgArguments,
    POSTGRES, begin: "BEGIN",
    id: as_is::<Uuid>, money: as_is::<Decimal>, date: naive, json: Value::clone,
    balance: |row: &sqlx::postgres::PgRow| row.try_get::<Decimal, _>(0),
    blind: POSTGRES_BOTH
);

by_hand!(
    mysql, sqlx::MySql, sqlx::MySqlPool, sqlx::mysql::MySqlRow, sqlx::mysql::MySqlArguments,
    MYSQL, begin: "BEGIN",
    id: text, money: as_is::<Decimal>, date: naive, json: Value::to_string,
    balance: |row: &sqlx::mysql::MySqlRow| row.try_get::<Decimal, _>(0),
);

by_hand!(
    sqlite, sqlx::Sqlite, sqlx::SqlitePool, sqlx::sqlite::SqliteRow, sqlx::sqlite::SqliteArguments,
    SQLITE, begin: "BEGIN IMMEDIATE",
    id: text, money: decimal_text, date: timestamp, json: Value::to_string,
    balance: |row: &sqlx::sqlite::SqliteRow| {
        row.try_get::<String, _>(0)?.parse::<Decimal>().map_err(|e| sqlx::Error::Decode(e.into()))
    },
);
