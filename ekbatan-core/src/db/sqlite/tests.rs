//! Commits over a real file: which thread they take, and what they leave.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures_util::FutureExt;
use futures_util::future::join;
use rust_decimal::Decimal;
use sqlx::Connection as _;
use uuid::Uuid;

use super::SqliteDriver;
use super::connection::SqliteConnection;
use crate::config::{DataSourceConfig, Durability};
use crate::db::fixtures::{SHORT_EVENTS, WALLETS, table};
use crate::db::{
    ActionId, Arg, ChangeKind, CommitBatch, CommitError, Connection, DbErrorKind, Driver, Query,
    Route, RowChange,
};
use crate::domain::{Value, ValueType};

/// How long a commit waits for another process.
const PATIENCE: Duration = Duration::from_secs(60);

struct File {
    folder: tempfile::TempDir,
    driver: SqliteDriver,
}

impl File {
    async fn new(durability: Durability) -> (Self, Box<dyn Connection>) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("wallets.db").display());
        let config = DataSourceConfig::new(url).durability(durability).connection_timeout(PATIENCE);
        let file = Self { driver: SqliteDriver::new(&config).unwrap(), folder };
        let mut connection = file.connect().await;
        connection
            .script(
                "CREATE TABLE wallets (id TEXT PRIMARY KEY, balance TEXT, version INTEGER, \
                 created_date TEXT, updated_date TEXT); \
                 CREATE TABLE eventlog_events (action_id TEXT)",
            )
            .await
            .unwrap();
        (file, connection)
    }

    async fn connect(&self) -> Box<dyn Connection> {
        self.driver.connect(Route::Primary).await.unwrap()
    }

    /// A connection of another process that has begun to write.
    async fn other_writer(&self) -> sqlx::SqliteConnection {
        let url = format!("sqlite:{}", self.folder.path().join("wallets.db").display());
        let mut other = sqlx::SqliteConnection::connect(&url).await.unwrap();
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
        other
    }

    fn log_bytes(&self) -> u64 {
        std::fs::metadata(self.folder.path().join("wallets.db-wal")).unwrap().len()
    }
}

async fn end_soon(mut other: sqlx::SqliteConnection) {
    tokio::time::sleep(Duration::from_millis(100)).await;
    sqlx::raw_sql("COMMIT").execute(&mut other).await.unwrap();
}

fn batch(kind: ChangeKind, id: Uuid, version: i64) -> CommitBatch {
    let now = Value::Timestamp(DateTime::<Utc>::UNIX_EPOCH);
    let balance = Value::Decimal(Decimal::ONE);
    let values = vec![Value::Uuid(id), balance, Value::Int(version), now.clone(), now];
    let table = table(&WALLETS, |_| "TEXT");
    CommitBatch {
        action: ActionId(Uuid::now_v7()),
        changes: vec![RowChange { table, kind, id, values: Arc::new(values), steps: 1 }],
        expected: Vec::new(),
        records: Vec::new(),
        fences: Vec::new(),
        traceable: true,
        turns: Vec::new(),
    }
}

async fn version(connection: &mut dyn Connection, id: Uuid) -> Option<i64> {
    let query = Query {
        sql: "SELECT version FROM wallets WHERE id = $1".into(),
        args: vec![Arg::One(ValueType::Uuid, Value::Uuid(id))],
        columns: WALLETS.columns[2..3].into(),
    };
    match connection.find(&query).await.unwrap().pop()?.pop()? {
        Value::Int(version) => Some(version),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_commit_that_waits_for_another_process_leaves_the_runtime_alone() {
    for durability in [Durability::Wal, Durability::Full] {
        let (file, mut connection) = File::new(durability).await;
        let other = file.other_writer().await;
        let begun = Instant::now();
        let batch = batch(ChangeKind::Insert, Uuid::now_v7(), 1);
        // The runtime has one thread, which also ends the other transaction.
        let (answers, ()) = join(connection.commit(&[&batch]), end_soon(other)).await;
        answers.unwrap().remove(0).unwrap();
        assert!(begun.elapsed() < PATIENCE, "{durability:?}: {:?}", begun.elapsed());
        connection.close().await;
    }
}

#[tokio::test]
async fn a_commit_on_a_thread_outlives_its_caller_and_is_waited_for() {
    let (file, mut connection) = File::new(Durability::Full).await;
    let other = file.other_writer().await;
    let id = Uuid::now_v7();
    let batch = batch(ChangeKind::Insert, id, 1);
    {
        let batches = [&batch];
        let mut commit = connection.commit(&batches);
        assert!((&mut commit).now_or_never().is_none());
    }
    drop(connection);
    let mut next = file.connect().await;
    let actions = [batch.action];
    let (settled, ()) = join(next.settle(None, &actions), end_soon(other)).await;
    settled.unwrap();
    assert_eq!(version(&mut *next, id).await, Some(1));
    next.close().await;
}

#[tokio::test]
async fn small_commits_do_not_let_the_log_grow() {
    let (file, mut connection) = File::new(Durability::Wal).await;
    let id = Uuid::now_v7();
    let inserted = batch(ChangeKind::Insert, id, 1);
    connection.commit(&[&inserted]).await.unwrap().remove(0).unwrap();
    for version in 1..=6_000 {
        let update = batch(ChangeKind::Update, id, version);
        connection.commit(&[&update]).await.unwrap().remove(0).unwrap();
    }
    // Of 4 KiB each, some 1,000 pages until it is written into the file, and those of the commits
    // until then.
    let bytes = file.log_bytes();
    assert!(bytes < 8 * 1024 * 1024, "the log has {bytes} bytes");
    connection.close().await;
}

#[tokio::test]
async fn a_stale_batch_writes_nothing_and_the_others_of_its_transaction_commit() {
    for durability in [Durability::Wal, Durability::Full] {
        let (_file, mut connection) = File::new(durability).await;
        let ids: Vec<Uuid> = (0..2).map(|_| Uuid::now_v7()).collect();
        let inserted = ids.clone().into_iter().map(|id| batch(ChangeKind::Insert, id, 1));
        let inserted: Vec<CommitBatch> = inserted.collect();
        connection.commit(&inserted.iter().collect::<Vec<_>>()).await.unwrap();
        let mut stale = batch(ChangeKind::Update, ids[0], 7);
        stale.records = batch(ChangeKind::Insert, Uuid::now_v7(), 1).changes;
        let recorded = stale.records[0].values[0].clone();
        let good = batch(ChangeKind::Update, ids[1], 1);
        let answers = connection.commit(&[&stale, &good]).await.unwrap();
        assert!(matches!(&answers[..], [Err(CommitError::Stale(_)), Ok(())]), "{answers:?}");
        assert_eq!(version(&mut *connection, ids[0]).await, Some(1));
        assert_eq!(version(&mut *connection, ids[1]).await, Some(2));
        let Value::Uuid(recorded) = recorded else { panic!("a key is a UUID") };
        assert_eq!(version(&mut *connection, recorded).await, None);
        connection.close().await;
    }
}

#[tokio::test]
async fn a_plan_may_write_a_child_before_its_parent_and_not_without_it() {
    for durability in [Durability::Wal, Durability::Full] {
        let (_file, mut connection) = File::new(durability).await;
        let refers = "DROP TABLE eventlog_events; \
            CREATE TABLE eventlog_events (id TEXT REFERENCES wallets (id), payload TEXT)";
        connection.script(refers).await.unwrap();
        let child_of = |id| {
            let values = vec![Value::Uuid(id), Value::Json("{}".to_owned())];
            let table = table(&SHORT_EVENTS, |_| "TEXT");
            RowChange { table, kind: ChangeKind::Insert, id, values: Arc::new(values), steps: 1 }
        };
        let (parent, other) = (Uuid::now_v7(), Uuid::now_v7());
        let mut family = batch(ChangeKind::Insert, parent, 1);
        family.changes.insert(0, child_of(parent));
        connection.commit(&[&family]).await.unwrap().remove(0).unwrap();
        assert_eq!(version(&mut *connection, parent).await, Some(1));
        let mut orphan = batch(ChangeKind::Insert, other, 1);
        orphan.changes.insert(0, child_of(Uuid::now_v7()));
        let error = connection.commit(&[&orphan]).await.unwrap_err();
        assert_eq!(error.kind(), DbErrorKind::ForeignKeyViolation);
        assert_eq!(version(&mut *connection, other).await, None);
        connection.close().await;
    }
}

/// A connection of sqlx keeps what transactions run and what conditions read.
#[tokio::test]
async fn a_query_of_many_parameters_does_not_stay_prepared() {
    let (_file, mut connection) = File::new(Durability::Wal).await;
    let mut kept = Vec::new();
    for parameters in [1, 500, 501, 502] {
        let marks: Vec<String> = (1..=parameters).map(|n| format!("${n}")).collect();
        let query = Query {
            sql: format!("SELECT version FROM wallets WHERE id IN ({})", marks.join(", ")).into(),
            args: vec![Arg::One(ValueType::Uuid, Value::Uuid(Uuid::nil())); parameters],
            columns: WALLETS.columns[2..3].into(),
        };
        connection.fetch(&query).await.unwrap();
        let own = connection.as_any().downcast_mut::<SqliteConnection>().unwrap();
        kept.push(own.inner.cached_statements_size());
    }
    assert_eq!(kept, [kept[0], kept[0] + 1, kept[0] + 1, kept[0] + 1]);
    connection.close().await;
}
