//! A SQLite file, and the hand-written deposits for it.

mod library;

use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::SecondsFormat;
use ekbatan::config::{DataSourceConfig, Durability};
use ekbatan::prelude::*;
use ekbatan_testkit::TempSqlite;
use sqlx::query::Query;
use sqlx::sqlite::{
    SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Row, Sqlite as Dialect, SqliteConnection, SqlitePool};
use tokio::sync::Mutex;

use crate::commit::options::CommitDurability;
use crate::commit::rows::{DepositEvent, NAMESPACE, PRINCIPAL, Totals, WalletRow};
use crate::failure::Failure;
use crate::wallet::migrations;

pub use library::Library;

const SELECT: &str = "SELECT id, owner, currency, balance, state, version, created_date, updated_date \
                      FROM wallets WHERE id = ? AND state <> 'DELETED'";

const UPDATE: &str = "UPDATE wallets SET owner = ?, currency = ?, balance = ?, state = ?, updated_date = ?, \
                      version = version + 1 WHERE id = ? AND version = ?";

const INSERT: &str = "INSERT INTO eventlog_events (id, namespace, action_id, action_name, action_params, \
                      started_date, completion_date, model_id, model_type, event_type, payload, event_date, \
                      delivered, principal, reason, trace_parent, model_version, event_index, event_version) \
                      VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

/// A stale `UPDATE` changes no row, and then the `INSERT` selects no row either.
const WHOLE: &str = "BEGIN IMMEDIATE; UPDATE wallets SET owner = ?, currency = ?, balance = ?, state = ?, \
                     updated_date = ?, version = version + 1 WHERE id = ? AND version = ?; \
                     INSERT INTO eventlog_events (id, namespace, action_id, action_name, action_params, \
                     started_date, completion_date, model_id, model_type, event_type, payload, event_date, \
                     delivered, principal, reason, trace_parent, model_version, event_index, event_version) \
                     SELECT ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? WHERE changes() = 1 \
                     RETURNING 1; COMMIT";

/// The database file, removed when this is dropped.
pub struct SqliteBench {
    file: TempSqlite,
    options: SqliteConnectOptions,
    durability: CommitDurability,
}

impl SqliteBench {
    pub async fn start(wallets: &[Uuid], durability: CommitDurability) -> Result<Self, Failure> {
        let file = TempSqlite::new()?;
        let databases = Databases::open(&file.url()).await?;
        databases.migrate(&migrations()).await?;
        databases.close().await;
        let options = SqliteConnectOptions::from_str(&file.url())?
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(match durability {
                CommitDurability::Full => SqliteSynchronous::Full,
                CommitDurability::Wal => SqliteSynchronous::Normal,
            })
            .busy_timeout(Duration::from_secs(30))
            .foreign_keys(true);
        let sqlite = Self { file, options, durability };
        let ids: Vec<String> = wallets.iter().map(Uuid::to_string).collect();
        let mut connection = sqlite.options.connect().await?;
        sqlx::query(
            "INSERT INTO wallets SELECT value, 'owner of ' || value, 'EUR', '0.00', 'OPEN', 1, ?, ? \
             FROM json_each(?)",
        )
        .bind(timestamp(&Utc::now()))
        .bind(timestamp(&Utc::now()))
        .bind(serde_json::to_string(&ids)?)
        .execute(&mut connection)
        .await?;
        sqlx::raw_sql("ANALYZE").execute(&mut connection).await?;
        Ok(sqlite)
    }

    /// Brings the file into the same state before each measurement.
    pub async fn tidy(&self) -> Result<(), Failure> {
        let mut connection = self.options.connect().await?;
        sqlx::raw_sql("PRAGMA wal_checkpoint(TRUNCATE)").execute(&mut connection).await?;
        Ok(())
    }

    pub async fn totals(&self) -> Result<Totals, Failure> {
        let mut connection = self.options.connect().await?;
        let (balance, changes, events, deposited) = sqlx::query_as(
            "SELECT * FROM (SELECT sum(CAST(round(balance * 100) AS INTEGER)), sum(version - 1) FROM wallets), \
             (SELECT count(*), coalesce(sum(CAST(round(json_extract(payload, '$.amount') * 100) AS INTEGER)), 0) \
              FROM eventlog_events)",
        )
        .fetch_one(&mut connection)
        .await?;
        Ok(Totals { balance, changes, events, deposited })
    }

    pub const fn durability(&self) -> CommitDurability {
        self.durability
    }

    /// The configuration of ekbatan for the same file and durability.
    pub fn config(&self) -> DataSourceConfig {
        DataSourceConfig::new(self.file.url()).durability(match self.durability {
            CommitDurability::Full => Durability::Full,
            CommitDurability::Wal => Durability::Wal,
        })
    }

    /// The worker of the `library` mode.
    pub fn library(&self) -> Result<Library, Failure> {
        Library::open(self.options.get_filename(), self.durability)
    }

    /// The pool of the `sqlx-transaction` mode.
    pub async fn pool(&self, size: u32) -> Result<SqlitePool, Failure> {
        let options = SqlitePoolOptions::new().max_connections(size);
        Ok(options.connect_with(self.options.clone()).await?)
    }

    /// The connections of each worker of the `single-statement` mode.
    pub async fn connections(&self, count: u32) -> Result<Vec<ReaderAndWriter>, Failure> {
        let options = self.options.clone().disable_statement_logging();
        let writer = Arc::new(Mutex::new(options.connect().await?));
        let mut connections = Vec::new();
        for _ in 0..count {
            let reader = options.connect().await?;
            connections.push(ReaderAndWriter { reader, writer: writer.clone() });
        }
        Ok(connections)
    }
}

/// The usual form: a pool and a transaction. It starts with `BEGIN IMMEDIATE`; otherwise
/// SQLite rejects most transactions that overlap.
pub async fn transaction(pool: &SqlitePool, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
    let started = Utc::now();
    loop {
        let mut transaction = match pool.begin_with("BEGIN IMMEDIATE").await {
            Err(sqlx::Error::Database(error)) if is_busy(&*error) => continue,
            begun => begun?,
        };
        let mut row = read(&mut transaction, wallet).await?;
        row.balance += amount;
        let event = DepositEvent::new(started, wallet, amount, row.balance);
        let updated = bind_row(sqlx::query(UPDATE), wallet, &row, &event)
            .execute(&mut *transaction)
            .await?
            .rows_affected();
        if updated == 0 {
            transaction.rollback().await?;
            continue;
        }
        bind_event(sqlx::query(INSERT), wallet, &row, &event).execute(&mut *transaction).await?;
        return Ok(transaction.commit().await?);
    }
}

fn is_busy(error: &dyn sqlx::error::DatabaseError) -> bool {
    error.code().and_then(|code| code.parse::<i32>().ok()).is_some_and(|code| code & 0xff == 5)
}

/// A worker's own reader, and the writer that all workers share.
pub struct ReaderAndWriter {
    reader: SqliteConnection,
    writer: Arc<Mutex<SqliteConnection>>,
}

impl ReaderAndWriter {
    /// The fastest form by hand: one call for all writes.
    pub async fn deposit(&mut self, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
        let started = Utc::now();
        loop {
            let mut row = read(&mut self.reader, wallet).await?;
            row.balance += amount;
            let event = DepositEvent::new(started, wallet, amount, row.balance);
            let query = bind_row(sqlx::query(WHOLE), wallet, &row, &event);
            let query = bind_event(query, wallet, &row, &event);
            let mut writer = self.writer.lock().await;
            let written = query.fetch_all(&mut *writer).await;
            drop(writer);
            if !written?.is_empty() {
                return Ok(());
            }
        }
    }
}

async fn read(connection: &mut SqliteConnection, wallet: Uuid) -> Result<WalletRow, Failure> {
    let row = sqlx::query(SELECT).bind(wallet.to_string()).fetch_one(connection).await?;
    let text = |at: usize| row.try_get::<String, _>(at);
    let _: Uuid = text(0)?.parse()?;
    let _ = DateTime::parse_from_rfc3339(&text(6)?)?;
    let _ = DateTime::parse_from_rfc3339(&text(7)?)?;
    Ok(WalletRow {
        owner: text(1)?,
        currency: text(2)?,
        balance: text(3)?.parse()?,
        state: text(4)?,
        version: row.try_get(5)?,
    })
}

fn timestamp(date: &DateTime<Utc>) -> String {
    date.to_rfc3339_opts(SecondsFormat::Micros, true)
}

fn bind_row<'q>(
    query: Query<'q, Dialect, SqliteArguments>,
    wallet: Uuid,
    row: &'q WalletRow,
    event: &DepositEvent,
) -> Query<'q, Dialect, SqliteArguments> {
    query
        .bind(&row.owner)
        .bind(&row.currency)
        .bind(row.balance.to_string())
        .bind(&row.state)
        .bind(timestamp(&event.completed))
        .bind(wallet.to_string())
        .bind(row.version)
}

fn bind_event<'q>(
    query: Query<'q, Dialect, SqliteArguments>,
    wallet: Uuid,
    row: &WalletRow,
    event: &DepositEvent,
) -> Query<'q, Dialect, SqliteArguments> {
    query
        .bind(event.id.to_string())
        .bind(NAMESPACE)
        .bind(event.action.to_string())
        .bind("wallet.deposit_money")
        .bind(event.params.to_string())
        .bind(timestamp(&event.started))
        .bind(timestamp(&event.completed))
        .bind(wallet.to_string())
        .bind("Wallet")
        .bind("WalletMoneyDeposited")
        .bind(event.payload.to_string())
        .bind(timestamp(&event.completed))
        .bind(false)
        .bind(PRINCIPAL)
        .bind(None::<String>)
        .bind(None::<String>)
        .bind(row.version + 1)
        .bind(0_i32)
        .bind(1_i32)
}
