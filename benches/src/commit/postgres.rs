//! A durable PostgreSQL server, and the hand-written deposits for it.

use ekbatan::prelude::*;
use ekbatan_testkit::{PostgresServer, PostgresServerBuilder};
use sqlx::postgres::{PgArguments, PgConnectOptions, PgPoolOptions};
use sqlx::query::Query;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection, PgPool, Postgres as Dialect};

use crate::commit::rows::{DepositEvent, NAMESPACE, PRINCIPAL, Totals, WalletRow};
use crate::failure::Failure;
use crate::wallet::migrations;

const SELECT: &str = "SELECT id, owner, currency, balance, state, version, created_date, updated_date \
                      FROM wallets WHERE id = $1 AND state <> 'DELETED'";

const UPDATE: &str = "UPDATE wallets SET owner = $3, currency = $4, balance = $5, state = $6, \
                      version = $2 + 1, updated_date = $7 WHERE id = $1 AND version = $2";

const INSERT: &str = "INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, \
                      started_date, completion_date, model_id, model_type, event_type, payload, event_date, \
                      delivered, principal, reason, trace_parent, model_version, event_index, event_version) \
                      VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19)";

const BOTH: &str = "WITH u AS (UPDATE wallets SET owner = $3, currency = $4, balance = $5, state = $6, \
                    version = $2 + 1, updated_date = $7 WHERE id = $1 AND version = $2 RETURNING 1) \
                    INSERT INTO eventlog.events (id, namespace, action_id, action_name, action_params, \
                    started_date, completion_date, model_id, model_type, event_type, payload, event_date, \
                    delivered, principal, reason, trace_parent, model_version, event_index, event_version) \
                    SELECT $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22, $23, $24, \
                    $25, $26 FROM u";

/// The server and its one database.
pub struct PostgresBench {
    server: PostgresServer,
    url: String,
}

impl PostgresBench {
    pub async fn start(tasks: u32, wallets: &[Uuid]) -> Result<Self, Failure> {
        Self::from_builder(builder(tasks), wallets).await
    }

    /// Starts a server that counts statements, by an extension that most packages of the server
    /// contain.
    pub async fn start_counting(tasks: u32, wallets: &[Uuid]) -> Result<Self, Failure> {
        let counting = builder(tasks)
            .setting("shared_preload_libraries", "pg_stat_statements")
            .setting("pg_stat_statements.max", "20000");
        Self::from_builder(counting, wallets).await
    }

    async fn from_builder(
        builder: PostgresServerBuilder,
        wallets: &[Uuid],
    ) -> Result<Self, Failure> {
        let server = builder.start().await?;
        let url = new_database(&server, wallets).await?;
        Ok(Self { server, url })
    }

    /// Replaces the database by a new one, which has the same wallets and nothing else.
    pub async fn empty(&mut self, wallets: &[Uuid]) -> Result<(), Failure> {
        let url = new_database(&self.server, wallets).await?;
        let former = std::mem::replace(&mut self.url, url);
        let name = former.rsplit('/').next().unwrap_or_default();
        let mut connection = self.connect().await?;
        let drop = format!("DROP DATABASE {name} WITH (FORCE)");
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    /// How many statements the server has executed in this database since it counts them, the ends
    /// of transactions included.
    pub async fn statements(&self) -> Result<i64, Failure> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            .execute(&mut connection)
            .await?;
        let (statements,) = sqlx::query_as(
            "SELECT coalesce(sum(calls), 0)::int8 FROM pg_stat_statements \
             WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())",
        )
        .fetch_one(&mut connection)
        .await?;
        connection.close().await?;
        Ok(statements)
    }

    /// Stops the server.
    pub async fn stop(self) -> Result<(), Failure> {
        Ok(self.server.stop().await?)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn port(&self) -> u16 {
        self.server.port()
    }

    /// Brings the server into the same state before each measurement.
    pub async fn tidy(&self) -> Result<(), Failure> {
        let mut connection = self.connect().await?;
        for sql in ["VACUUM (ANALYZE) wallets", "VACUUM (ANALYZE) eventlog.events", "CHECKPOINT"] {
            sqlx::raw_sql(sql).execute(&mut connection).await?;
        }
        Ok(connection.close().await?)
    }

    pub async fn analyze(&self) -> Result<(), Failure> {
        let mut connection = self.connect().await?;
        sqlx::raw_sql("ANALYZE").execute(&mut connection).await?;
        Ok(connection.close().await?)
    }

    pub async fn totals(&self) -> Result<Totals, Failure> {
        let mut connection = self.connect().await?;
        let (balance, changes, events, deposited) = sqlx::query_as(
            "SELECT * FROM (SELECT sum(balance * 100)::int8, sum(version - 1)::int8 FROM wallets) w, \
             (SELECT count(*), coalesce(sum((payload ->> 'amount')::numeric * 100), 0)::int8 \
              FROM eventlog.events) e",
        )
        .fetch_one(&mut connection)
        .await?;
        connection.close().await?;
        Ok(Totals { balance, changes, events, deposited })
    }

    async fn connect(&self) -> Result<PgConnection, Failure> {
        Ok(PgConnection::connect(&self.url).await?)
    }
}

fn builder(tasks: u32) -> PostgresServerBuilder {
    PostgresServer::builder()
        .durable()
        .setting("max_connections", (tasks + 40).to_string())
        .setting("shared_buffers", "128MB")
        // Checkpoints run between measurements, never during one.
        .setting("max_wal_size", "8GB")
        .setting("checkpoint_timeout", "1h")
}

/// Creates a database with wallets, and returns its URL.
async fn new_database(server: &PostgresServer, wallets: &[Uuid]) -> Result<String, Failure> {
    let url = server.create_database().await?;
    let databases = Databases::open(&url).await?;
    databases.migrate(&migrations()).await?;
    databases.close().await;
    let mut connection = PgConnection::connect(&url).await?;
    sqlx::query(
        "INSERT INTO wallets SELECT id, 'owner of ' || id, 'EUR', 0, 'OPEN', 1, now(), now() \
         FROM unnest($1::uuid[]) AS id",
    )
    .bind(wallets)
    .execute(&mut connection)
    .await?;
    sqlx::raw_sql("ANALYZE").execute(&mut connection).await?;
    connection.close().await?;
    Ok(url)
}

/// The pool of the `sqlx-transaction` mode.
pub async fn pool(url: &str, size: u32) -> Result<PgPool, Failure> {
    Ok(PgPoolOptions::new().max_connections(size).connect(url).await?)
}

/// One connection for each worker of the `single-statement` mode.
pub async fn connections(url: &str, count: u32) -> Result<Vec<PgConnection>, Failure> {
    let options = url.parse::<PgConnectOptions>()?.disable_statement_logging();
    let mut connections = Vec::new();
    for _ in 0..count {
        connections.push(options.connect().await?);
    }
    Ok(connections)
}

/// The usual form: a pool and a transaction.
pub async fn transaction(pool: &PgPool, wallet: Uuid, amount: Decimal) -> Result<(), Failure> {
    let started = Utc::now();
    loop {
        let mut transaction = pool.begin().await?;
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

/// The fastest form by hand: one statement writes both the row and the event.
pub async fn statement(
    connection: &mut PgConnection,
    wallet: Uuid,
    amount: Decimal,
) -> Result<(), Failure> {
    let started = Utc::now();
    loop {
        let mut row = read(connection, wallet).await?;
        row.balance += amount;
        let event = DepositEvent::new(started, wallet, amount, row.balance);
        let query = bind_row(sqlx::query(BOTH), wallet, &row, &event);
        let query = bind_event(query, wallet, &row, &event);
        if query.execute(&mut *connection).await?.rows_affected() == 1 {
            return Ok(());
        }
    }
}

type Dates = (chrono::NaiveDateTime, chrono::NaiveDateTime);

async fn read(connection: &mut PgConnection, wallet: Uuid) -> Result<WalletRow, Failure> {
    use sqlx::Row;
    let row = sqlx::query(SELECT).bind(wallet).fetch_one(connection).await?;
    let _: Uuid = row.try_get(0)?;
    let _: Dates = (row.try_get(6)?, row.try_get(7)?);
    Ok(WalletRow {
        owner: row.try_get(1)?,
        currency: row.try_get(2)?,
        balance: row.try_get(3)?,
        state: row.try_get(4)?,
        version: row.try_get(5)?,
    })
}

fn bind_row<'q>(
    query: Query<'q, Dialect, PgArguments>,
    wallet: Uuid,
    row: &'q WalletRow,
    event: &DepositEvent,
) -> Query<'q, Dialect, PgArguments> {
    query
        .bind(wallet)
        .bind(row.version)
        .bind(&row.owner)
        .bind(&row.currency)
        .bind(row.balance)
        .bind(&row.state)
        .bind(event.completed.naive_utc())
}

fn bind_event<'q>(
    query: Query<'q, Dialect, PgArguments>,
    wallet: Uuid,
    row: &WalletRow,
    event: &'q DepositEvent,
) -> Query<'q, Dialect, PgArguments> {
    query
        .bind(event.id)
        .bind(NAMESPACE)
        .bind(event.action)
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
