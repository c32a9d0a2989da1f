//! Deposits with SeaORM, as its documentation shows them: a transaction, `lock_exclusive`
//! to find the row, an active model to update it, another one to insert the event. SeaORM
//! has no version checks of its own, so this is its way to protect a hot row.
//!
//! The code is a macro. Per database, only the storage of ids, amounts, dates and JSON in
//! the shared tables differs.

use ekbatan::prelude::*;
use sea_orm::entity::prelude::{DateTime as SeaDate, Json};
use sea_orm::{
    ActiveModelTrait, DatabaseConnection, DbErr, EntityTrait, QuerySelect, RuntimeErr, Set,
    SqliteTransactionMode, TransactionOptions, TransactionTrait,
};
use serde_json::Value;

use super::convert::{as_is, decimal_text, naive, text};
use super::event::{ACTION, EVENT, EventRow, MODEL};
use super::retry::is_transient;
use crate::contender::Contender;
use crate::failure::Failure;
use crate::money::{NAMESPACE, PRINCIPAL, timestamp};

macro_rules! sea {
    (
        $name:ident, $Pool:ty, events: [$($events:tt)*],
        $Id:ident: $id:expr, $Money:ident: $money:expr, $Date:ident: $date:expr, $Json:ident: $json:expr,
        balance: $balance:expr
    ) => {
        pub mod $name {
            use super::*;

            mod wallet {
                use super::super::*;
                use sea_orm::entity::prelude::*;

                #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
                #[sea_orm(table_name = "wallets")]
                pub struct Model {
                    #[sea_orm(primary_key, auto_increment = false)]
                    pub id: $Id,
                    pub owner: String,
                    pub currency: String,
                    pub balance: $Money,
                    pub state: String,
                    pub version: i64,
                    pub created_date: $Date,
                    pub updated_date: $Date,
                }

                #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
                pub enum Relation {}

                impl ActiveModelBehavior for ActiveModel {}
            }

            mod event {
                use super::super::*;
                use sea_orm::entity::prelude::*;

                #[derive(Clone, Debug, PartialEq, DeriveEntityModel)]
                #[sea_orm($($events)*)]
                pub struct Model {
                    #[sea_orm(primary_key, auto_increment = false)]
                    pub id: $Id,
                    pub namespace: String,
                    pub action_id: $Id,
                    pub action_name: String,
                    pub action_params: $Json,
                    pub started_date: $Date,
                    pub completion_date: $Date,
                    pub model_id: Option<String>,
                    pub model_type: Option<String>,
                    pub event_type: Option<String>,
                    pub payload: Option<$Json>,
                    pub event_date: $Date,
                    pub delivered: bool,
                    pub principal: Option<String>,
                    pub model_version: Option<i64>,
                    pub event_index: Option<i32>,
                    pub event_version: Option<i32>,
                }

                #[derive(Copy, Clone, Debug, EnumIter, DeriveRelation)]
                pub enum Relation {}

                impl ActiveModelBehavior for ActiveModel {}
            }

            pub struct SeaOrm {
                database: DatabaseConnection,
                pool: $Pool,
            }

            #[async_trait::async_trait]
            impl Contender for SeaOrm {
                async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<u32, Failure> {
                    let started = Utc::now();
                    for attempts in 1.. {
                        match self.deposit_once(started, wallet, amount).await {
                            Ok(()) => return Ok(attempts),
                            Err(error) if asks_again(&error) => {}
                            Err(error) => return Err(error.into()),
                        }
                    }
                    Err("a deposit was tried more often than can be counted".into())
                }

                async fn close(&self) {
                    self.pool.close().await;
                }
            }

            impl SeaOrm {
                pub fn new(pool: $Pool) -> Self {
                    Self { database: pool.clone().into(), pool }
                }

                async fn deposit_once(
                    &self,
                    started: DateTime<Utc>,
                    id: Uuid,
                    amount: Decimal,
                ) -> Result<(), DbErr> {
                    let transaction = self.database.begin_with_options(begin()).await?;
                    let wallet = wallet::Entity::find_by_id($id(id))
                        .lock_exclusive()
                        .one(&transaction)
                        .await?
                        .ok_or_else(|| DbErr::RecordNotFound(id.to_string()))?;
                    let balance: Decimal = $balance(&wallet.balance)? + amount;
                    let version = wallet.version + 1;
                    let row = EventRow::new(started, id, amount, Some(balance));
                    let mut wallet: wallet::ActiveModel = wallet.into();
                    wallet.balance = Set($money(balance));
                    wallet.version = Set(version);
                    wallet.updated_date = Set($date(&row.completed));
                    wallet.update(&transaction).await?;
                    let event = event::ActiveModel {
                        id: Set($id(row.id)),
                        namespace: Set(NAMESPACE.to_owned()),
                        action_id: Set($id(row.action)),
                        action_name: Set(ACTION.to_owned()),
                        action_params: Set($json(&row.params)),
                        started_date: Set($date(&row.started)),
                        completion_date: Set($date(&row.completed)),
                        model_id: Set(Some(id.to_string())),
                        model_type: Set(Some(MODEL.to_owned())),
                        event_type: Set(Some(EVENT.to_owned())),
                        payload: Set(Some($json(&row.payload))),
                        event_date: Set($date(&row.completed)),
                        delivered: Set(false),
                        principal: Set(Some(PRINCIPAL.to_owned())),
                        model_version: Set(Some(version)),
                        event_index: Set(Some(0)),
                        event_version: Set(Some(1)),
                    };
                    // No contender reads the inserted row back.
                    event::Entity::insert(event).exec_without_returning(&transaction).await?;
                    transaction.commit().await
                }
            }
        }
    };
}

sea!(
    postgres, sqlx::PgPool, events: [schema_name = "eventlog", table_name = "events"],
    Uuid: as_is::<Uuid>, Decimal: as_is::<Decimal>, SeaDate: naive, Json: Value::clone,
    balance: same
);

sea!(
    mysql, sqlx::MySqlPool, events: [schema_name = "eventlog", table_name = "events"],
    String: text, Decimal: as_is::<Decimal>, SeaDate: naive, Json: Value::clone,
    balance: same
);

sea!(
    sqlite, sqlx::SqlitePool, events: [table_name = "eventlog_events"],
    String: text, String: decimal_text, String: timestamp, String: Value::to_string,
    balance: parsed
);

/// On SQLite, starts with `BEGIN IMMEDIATE`; otherwise SQLite rejects most transactions
/// that overlap. The other databases ignore the option.
fn begin() -> TransactionOptions {
    TransactionOptions {
        sqlite_transaction_mode: Some(SqliteTransactionMode::Immediate),
        ..TransactionOptions::default()
    }
}

fn asks_again(error: &DbErr) -> bool {
    match error {
        DbErr::Exec(RuntimeErr::SqlxError(error))
        | DbErr::Query(RuntimeErr::SqlxError(error))
        | DbErr::Conn(RuntimeErr::SqlxError(error)) => is_transient(error),
        _ => false,
    }
}

fn same(balance: &Decimal) -> Result<Decimal, DbErr> {
    Ok(*balance)
}

fn parsed(balance: &str) -> Result<Decimal, DbErr> {
    balance.parse().map_err(|error| DbErr::Type(format!("balance {balance:?}: {error}")))
}
