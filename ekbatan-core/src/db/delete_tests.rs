//! Commits that delete rows.

use std::sync::Arc;

use futures_util::future::join_all;
use tempfile::TempDir;
use uuid::Uuid;

use super::driver::Route;
use super::{
    ActionId, Arg, ChangeKind, CommitBatch, CommitError, Committed, Database, Dialect, ExpectedRow,
    Query, RowChange, RowRef, TableInfo, TransactionOptions,
};
use crate::config::DataSourceConfig;
use crate::domain::{ColumnDef, ShardIdentifier, Table, Value, ValueType};

static WALLETS: Table = table("wallets");
/// By its name it comes before the wallets.
static DELIVERIES: Table = table("deliveries");
static NOTES: Table = table("notes");

const fn table(name: &'static str) -> Table {
    const COLUMNS: &[ColumnDef] = &[
        ColumnDef::new("id", ValueType::Uuid),
        ColumnDef::new("content", ValueType::Text),
        ColumnDef::new("version", ValueType::Int),
    ];
    let (schema, version, dates, state) = (None, Some(2), None, None);
    Table { schema, name, model: name, columns: COLUMNS, version, dates, state }
}

struct Scratch {
    database: Database,
    wallets: Arc<TableInfo>,
    deliveries: Arc<TableInfo>,
    notes: Arc<TableInfo>,
    _folder: TempDir,
}

impl Scratch {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("deletes.db").display());
        Self::at(&url, folder).await
    }

    async fn at(url: &str, folder: TempDir) -> Self {
        let config = DataSourceConfig::new(url).lanes(1);
        let shard = ShardIdentifier::default();
        let database = Database::connect(shard, &config, None).await.unwrap();
        let (uuid, text) = match database.driver.capabilities().dialect {
            Dialect::Postgres => ("uuid", "text"),
            _ => ("char(36)", "varchar(100)"),
        };
        let mut connection = database.driver.connect(Route::Primary).await.unwrap();
        for table in ["wallets", "deliveries", "notes"] {
            let columns =
                format!("id {uuid} PRIMARY KEY, content {text} NOT NULL, version bigint NOT NULL");
            connection.script(&format!("CREATE TABLE {table} ({columns})")).await.unwrap();
        }
        connection.close().await;
        let wallets = database.table(&WALLETS).await.unwrap();
        let deliveries = database.table(&DELIVERIES).await.unwrap();
        let notes = database.table(&NOTES).await.unwrap();
        Self { database, wallets, deliveries, notes, _folder: folder }
    }

    /// Adds rows at version 1.
    async fn add(&self, rows: &[(&Arc<TableInfo>, Uuid)]) {
        let inserts =
            rows.iter().map(|(table, id)| change(table, ChangeKind::Insert, *id, 1)).collect();
        self.commit(inserts, Vec::new()).await.unwrap();
    }

    async fn commit(
        &self,
        changes: Vec<RowChange>,
        records: Vec<RowChange>,
    ) -> Result<Committed, CommitError> {
        self.database.commit(batch(changes, records)).await
    }

    async fn version(&self, table: &Arc<TableInfo>, id: Uuid) -> Option<i64> {
        let columns = &table.columns;
        let syntax = self.database.driver.syntax();
        let argument = syntax.argument(1, ValueType::Uuid, &columns[0]);
        let query = Query {
            sql: format!("SELECT version FROM {} WHERE id = {argument}", table.table.name).into(),
            args: vec![Arg::One(ValueType::Uuid, Value::Uuid(id))],
            columns: table.table.columns[2..].into(),
        };
        let rows = self.database.fetch(&query, Route::Primary, "test").await.unwrap();
        rows.first().map(|row| match row[0] {
            Value::Int(version) => version,
            ref other => panic!("{other:?}"),
        })
    }
}

fn change(table: &Arc<TableInfo>, kind: ChangeKind, id: Uuid, version: i64) -> RowChange {
    let content = Value::Text(format!("content of {id}"));
    let values = Arc::new(vec![Value::Uuid(id), content, Value::Int(version)]);
    RowChange { table: table.clone(), kind, id, values, steps: 1 }
}

fn batch(changes: Vec<RowChange>, records: Vec<RowChange>) -> CommitBatch {
    CommitBatch {
        action: ActionId(Uuid::now_v7()),
        changes,
        expected: Vec::new(),
        records,
        fences: Vec::new(),
        traceable: false,
        turns: Vec::new(),
    }
}

fn ids<const N: usize>() -> [Uuid; N] {
    std::array::from_fn(|_| Uuid::now_v7())
}

fn insert(table: &Arc<TableInfo>, id: Uuid) -> RowChange {
    change(table, ChangeKind::Insert, id, 1)
}

fn update(table: &Arc<TableInfo>, id: Uuid, version: i64) -> RowChange {
    change(table, ChangeKind::Update, id, version)
}

fn delete(table: &Arc<TableInfo>, id: Uuid, version: i64) -> RowChange {
    change(table, ChangeKind::Delete, id, version)
}

fn stale(outcome: Result<Committed, CommitError>) -> Vec<RowRef> {
    match outcome {
        Err(CommitError::Stale(rows)) => rows,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_row_is_deleted_at_its_version_only() {
    let scratch = Scratch::new().await;
    let Scratch { deliveries, notes, .. } = &scratch;
    let [first, second, note, other_note] = ids();
    scratch.add(&[(deliveries, first), (deliveries, second)]).await;

    let other_version = delete(deliveries, first, 2);
    let of_row = other_version.row_ref();
    assert_eq!(stale(scratch.commit(vec![other_version], Vec::new()).await), [of_row]);
    assert_eq!(scratch.version(deliveries, first).await, Some(1));

    let deleted = scratch.commit(vec![delete(deliveries, first, 1)], Vec::new()).await.unwrap();
    assert_eq!((deleted.round_trips, scratch.version(deliveries, first).await), (1, None));
    let again = delete(deliveries, first, 1);
    let of_row = again.row_ref();
    let outcome = scratch.commit(vec![again], vec![insert(notes, other_note)]).await;
    assert_eq!(stale(outcome), [of_row]);
    assert_eq!(scratch.version(notes, other_note).await, None);

    let noted = vec![insert(notes, note)];
    let deleted = scratch.commit(vec![delete(deliveries, second, 1)], noted).await.unwrap();
    assert_eq!((deleted.round_trips, scratch.version(deliveries, second).await), (1, None));
    assert_eq!(scratch.version(notes, note).await, Some(1));
}

#[tokio::test]
async fn a_row_is_deleted_with_a_change_of_another_row_in_one_round_trip() {
    let scratch = Scratch::new().await;
    let Scratch { wallets, deliveries, notes, .. } = &scratch;
    let [wallet, new, delivery, other] = ids();
    scratch.add(&[(wallets, wallet), (deliveries, delivery), (deliveries, other)]).await;
    let note = || vec![insert(notes, Uuid::now_v7()), insert(notes, Uuid::now_v7())];

    let changes = vec![update(wallets, wallet, 1), delete(deliveries, delivery, 1)];
    assert_eq!(scratch.commit(changes, note()).await.unwrap().round_trips, 1);
    assert_eq!(scratch.version(wallets, wallet).await, Some(2));
    assert_eq!(scratch.version(deliveries, delivery).await, None);

    let changes = vec![insert(wallets, new), delete(deliveries, other, 1)];
    assert_eq!(scratch.commit(changes, note()).await.unwrap().round_trips, 1);
    assert_eq!(scratch.version(wallets, new).await, Some(1));
    assert_eq!(scratch.version(deliveries, other).await, None);

    // A whole batch is written, or nothing of it.
    let (gone, late) = (delete(deliveries, delivery, 1), update(wallets, wallet, 1));
    let (of_gone, of_late) = (gone.row_ref(), late.row_ref());
    let changes = vec![update(wallets, wallet, 2), gone.clone()];
    assert_eq!(stale(scratch.commit(changes, note()).await), [of_gone]);
    assert_eq!(scratch.version(wallets, wallet).await, Some(2));
    let changes = vec![insert(wallets, Uuid::now_v7()), gone.clone()];
    assert_eq!(stale(scratch.commit(changes, note()).await), [of_gone]);
    scratch.add(&[(deliveries, other)]).await;
    let changes = vec![late.clone(), delete(deliveries, other, 1)];
    assert_eq!(stale(scratch.commit(changes, note()).await), [of_late]);
    assert_eq!(scratch.version(deliveries, other).await, Some(1));
    assert_eq!(stale(scratch.commit(vec![gone, late], note()).await), [of_gone, of_late]);
}

#[tokio::test]
async fn a_batch_with_several_deletes_is_whole_or_not_at_all() {
    let scratch = Scratch::new().await;
    let Scratch { wallets, deliveries, .. } = &scratch;
    let [wallet, expected, first, second, third] = ids();
    let rows = [first, second, third].map(|id| (deliveries, id));
    scratch.add(&[&rows[..], &[(wallets, wallet), (wallets, expected)]].concat()).await;
    let expected =
        || vec![ExpectedRow { table: wallets.clone(), id: expected, version: 1, is_locked: true }];
    let changes = |third_version| {
        vec![
            update(wallets, wallet, 1),
            update(deliveries, third, third_version),
            delete(deliveries, first, 1),
            delete(deliveries, second, 1),
        ]
    };

    let wrong = CommitBatch { expected: expected(), ..batch(changes(7), Vec::new()) };
    let stale = stale(scratch.database.commit(wrong).await);
    assert_eq!(stale, [update(deliveries, third, 7).row_ref()]);
    assert_eq!(scratch.version(deliveries, first).await, Some(1));

    let right = CommitBatch { expected: expected(), ..batch(changes(1), Vec::new()) };
    scratch.database.commit(right).await.unwrap();
    assert_eq!(scratch.version(deliveries, first).await, None);
    assert_eq!(scratch.version(deliveries, second).await, None);
    assert_eq!(scratch.version(deliveries, third).await, Some(2));
    assert_eq!(scratch.version(wallets, wallet).await, Some(2));
}

#[tokio::test]
async fn batches_that_delete_one_row_each_are_committed_together() {
    let scratch = Scratch::new().await;
    let deliveries = &scratch.deliveries;
    let rows: [Uuid; 64] = ids();
    scratch.add(&rows.map(|id| (deliveries, id))).await;
    // All wait in the queue before the lane runs, because there is one thread.
    let deletes = rows.map(|id| scratch.commit(vec![delete(deliveries, id, 1)], Vec::new()));
    for outcome in join_all(deletes).await {
        let committed = outcome.unwrap();
        assert_eq!(committed.folded, 64);
        assert_eq!(committed.round_trips, 1);
    }
    for id in rows {
        assert_eq!(scratch.version(deliveries, id).await, None);
    }
}

#[tokio::test]
async fn a_stale_delete_does_not_hold_up_the_others_of_its_statement() {
    let scratch = Scratch::new().await;
    let Scratch { wallets, deliveries, notes, .. } = &scratch;
    let rows: [Uuid; 6] = ids();
    let [wallet, gone] = ids();
    let all = rows.map(|id| (deliveries, id));
    scratch.add(&[&all[..], &[(wallets, wallet)]].concat()).await;
    let deletes = rows.map(|id| scratch.commit(vec![delete(deliveries, id, 1)], Vec::new()));
    let stale_one = delete(deliveries, gone, 1);
    let of_gone = stale_one.row_ref();
    let changes = vec![update(wallets, wallet, 1), stale_one];
    let with_stale = scratch.commit(changes, vec![insert(notes, Uuid::now_v7())]);
    let (outcome, outcomes) = tokio::join!(with_stale, join_all(deletes));
    assert_eq!(stale(outcome), [of_gone]);
    assert_eq!(scratch.version(wallets, wallet).await, Some(1));
    for (id, outcome) in rows.into_iter().zip(outcomes) {
        outcome.unwrap();
        assert_eq!(scratch.version(deliveries, id).await, None);
    }
}

#[tokio::test]
async fn a_batch_behind_the_delete_of_its_row_is_stale_without_a_round_trip() {
    let scratch = Scratch::new().await;
    let deliveries = &scratch.deliveries;
    let [row, other] = ids();
    scratch.add(&[(deliveries, row), (deliveries, other)]).await;
    let late =
        || [delete(deliveries, row, 1), update(deliveries, row, 1), update(deliveries, row, 2)];
    let of_late = late().map(|change| change.row_ref());
    let expecting = CommitBatch {
        expected: vec![ExpectedRow {
            table: deliveries.clone(),
            id: row,
            version: 1,
            is_locked: true,
        }],
        ..batch(Vec::new(), vec![insert(&scratch.notes, other)])
    };
    let deleting = scratch.commit(vec![delete(deliveries, row, 1)], Vec::new());
    let parked = late().map(|change| scratch.commit(vec![change], Vec::new()));
    let (deleted, outcomes, unchanged) =
        tokio::join!(deleting, join_all(parked), scratch.database.commit(expecting));
    assert_eq!(deleted.unwrap().folded, 1);
    for (outcome, of_late) in outcomes.into_iter().zip(of_late) {
        assert_eq!(stale(outcome), [of_late]);
    }
    assert_eq!(stale(unchanged), [of_late[0]]);

    // A delete behind an update of its row follows the version that the update leaves.
    let updating = scratch.commit(vec![update(deliveries, other, 1)], Vec::new());
    let too_early = scratch.commit(vec![delete(deliveries, other, 1)], Vec::new());
    let right = scratch.commit(vec![delete(deliveries, other, 2)], Vec::new());
    let (updated, too_early, right) = tokio::join!(updating, too_early, right);
    updated.unwrap();
    assert_eq!(stale(too_early), [delete(deliveries, other, 1).row_ref()]);
    right.unwrap();
    assert_eq!(scratch.version(deliveries, other).await, None);
}

#[tokio::test]
async fn a_transaction_deletes_rows() {
    let scratch = Scratch::new().await;
    let Scratch { wallets, deliveries, .. } = &scratch;
    let [wallet, delivery] = ids();
    scratch.add(&[(wallets, wallet), (deliveries, delivery)]).await;
    let mut connection = scratch.database.driver.connect(Route::Primary).await.unwrap();
    connection.begin(&TransactionOptions::default()).await.unwrap();
    let (gone, right) = (delete(deliveries, wallet, 1), delete(deliveries, delivery, 1));
    let of_gone = gone.row_ref();
    let outcome =
        connection.write(&batch(vec![gone, update(wallets, wallet, 1)], Vec::new())).await;
    assert!(matches!(outcome, Err(CommitError::Stale(rows)) if rows == [of_gone]));
    let changes = vec![right, update(wallets, wallet, 1)];
    connection.write(&batch(changes, Vec::new())).await.unwrap();
    connection.end(true).await.unwrap();
    connection.close().await;
    assert_eq!(scratch.version(wallets, wallet).await, Some(2));
    assert_eq!(scratch.version(deliveries, delivery).await, None);
}

#[tokio::test]
async fn turns_of_a_group_delete_rows() {
    let scratch = Scratch::new().await;
    let Scratch { wallets, deliveries, notes, .. } = &scratch;
    let [wallet, first, second] = ids();
    scratch.add(&[(wallets, wallet), (deliveries, first), (deliveries, second)]).await;
    let deletes = || [first, second].map(|id| delete(deliveries, id, 1));
    let group = |last_version| {
        let [first, second] = deletes();
        let turns = vec![
            batch(vec![first, update(wallets, wallet, 1)], Vec::new()),
            batch(vec![second, update(wallets, wallet, last_version)], Vec::new()),
        ];
        let both = RowChange { steps: 2, ..update(wallets, wallet, 1) };
        let changes = deletes().into_iter().chain([both]).collect();
        CommitBatch { turns, ..batch(changes, vec![insert(notes, Uuid::now_v7())]) }
    };
    match scratch.database.commit(group(7)).await {
        Err(CommitError::Refused(error)) => assert_eq!(error.turn(), Some(1), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(scratch.version(deliveries, first).await, Some(1));
    scratch.database.commit(group(2)).await.unwrap();
    assert_eq!(scratch.version(wallets, wallet).await, Some(3));
    assert_eq!(scratch.version(deliveries, first).await, None);
    assert_eq!(scratch.version(deliveries, second).await, None);
}
