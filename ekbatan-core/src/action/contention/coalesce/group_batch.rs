//! The rows and records that the members of a group commit together.
//!
//! Invariants: each member's rows follow the versions that the members before it leave. The
//! records are those of the members, in the order of the members.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::action::shard_batches::ShardBatch;
use crate::db::{ActionId, ChangeKind, CommitBatch, Database, ExpectedRow, RowChange, may_merge};
use crate::domain::Value;
use crate::outbox::deliveries::Births;
use crate::repository::RowKey;
use crate::shard::Fencing;

/// What a member commits: its turn.
struct Turn {
    /// The member's position in the group.
    member: usize,
    batch: CommitBatch,
    births: Births,
}

/// The batches of a group's members.
#[derive(Default)]
pub(super) struct GroupBatch {
    database: Option<Arc<Database>>,
    turns: Vec<Turn>,
    /// The version of each row after the members so far that changed or expected it; `None` once
    /// the row is deleted.
    versions: HashMap<RowKey, Option<i64>>,
    bytes: usize,
}

/// How the turns of a group are written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Writing {
    /// For each row the last image, whose version has advanced by the number of its changes.
    Merged,
    /// One turn after another.
    InTurn,
}

impl GroupBatch {
    /// The approximate size of the batch when it is sent.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of members that write.
    pub(super) fn turns(&self) -> usize {
        self.turns.len()
    }

    /// The position of the member whose turn this is.
    pub(super) fn member(&self, turn: usize) -> usize {
        self.turns[turn].member
    }

    /// The database of the group; `None` if no member writes.
    pub(super) fn database(&self) -> Option<&Arc<Database>> {
        self.database.as_ref()
    }

    /// The action under whose id a commit of the first `count` turns is looked up: the first that
    /// leaves a record. One that only expects rows leaves none; if all do, the commit writes
    /// nothing, and may be sent again.
    pub(super) fn traced(&self, count: usize) -> ActionId {
        let leaves_a_record = |turn: &&Turn| !turn.batch.records.is_empty();
        let traced = self.turns[..count].iter().find(leaves_a_record);
        traced.unwrap_or(&self.turns[0]).batch.action
    }

    /// Whether a call may join: it is on the same shard, its rows follow the versions of the
    /// group's rows, and later members can know what it leaves.
    pub(super) fn can_join(&self, part: &ShardBatch) -> bool {
        let here = self.database.as_ref();
        if here.is_some_and(|database| database.shard != part.database.shard) {
            return false;
        }
        let has_expected = |row: &ExpectedRow| {
            self.versions.get(&expected_key(row)).is_none_or(|it| *it == Some(row.version))
        };
        let changes_follow = part.batch.changes.iter().all(|row| {
            // A trigger may change what later members read.
            !row.table.rules.reacts
                && match self.versions.get(&key(row)) {
                    None => true,
                    // A call that did not read the pending row runs again. One that inserts a row
                    // that exists must be refused by the database, and by itself. A delete is never
                    // merged with another change of its row.
                    Some(version) => {
                        row.kind == ChangeKind::Update && Some(row.expected_version()) == *version
                    }
                }
        });
        changes_follow && part.batch.expected.iter().all(has_expected)
    }

    /// Whether the commit of the group makes the batch of another call stale.
    pub(super) fn outdates(&self, part: &ShardBatch) -> bool {
        let here = self.database.as_ref();
        let differs = |key: RowKey, version: i64| {
            self.versions.get(&key).is_some_and(|left| *left != Some(version))
        };
        let changes_before = |row: &RowChange| {
            row.kind != ChangeKind::Insert && differs(key(row), row.expected_version())
        };
        here.is_some_and(|database| database.shard == part.database.shard)
            && (part.batch.changes.iter().any(changes_before)
                || part.batch.expected.iter().any(|row| differs(expected_key(row), row.version)))
    }

    /// Adds the batch of the member at this position.
    pub(super) fn join(&mut self, member: usize, part: ShardBatch) {
        let ShardBatch { database, batch, births } = part;
        self.bytes += batch.size();
        self.database.get_or_insert(database);
        let expected = batch.expected.iter().map(|row| (expected_key(row), Some(row.version)));
        self.versions.extend(expected);
        self.versions.extend(batch.changes.iter().map(|row| (key(row), row.next_version())));
        self.turns.push(Turn { member, batch, births });
    }

    /// What the nodes are told of the first `count` turns, in their order.
    pub(super) fn take_births(&mut self, count: usize) -> impl Iterator<Item = Births> {
        self.turns.iter_mut().take(count).map(|turn| std::mem::take(&mut turn.births))
    }

    /// How the first `count` turns must be written, so that the rules of the database hold as if
    /// the members committed one after another.
    pub(super) fn writing(&self, count: usize) -> Writing {
        if count == 1 || may_merge(self.turns[..count].iter().map(|turn| &turn.batch)) {
            Writing::Merged
        } else {
            Writing::InTurn
        }
    }

    /// The batch that commits the first `count` turns, at least one.
    pub(super) fn commit(
        &self,
        count: usize,
        writing: Writing,
        fencing: Option<&Fencing>,
    ) -> CommitBatch {
        let batches = || self.turns[..count].iter().map(|turn| &turn.batch);
        let mut records: Vec<RowChange> =
            batches().flat_map(|batch| &batch.records).cloned().collect();
        // A stable sort: each table is written by one statement, in the order of the members.
        records.sort_by_key(|record| record.table.table.key());
        CommitBatch {
            action: self.traced(count),
            changes: merged(batches().flat_map(|batch| &batch.changes)),
            expected: unchanged(batches()),
            records,
            fences: fencing.map(Fencing::checks).unwrap_or_default(),
            traceable: true,
            turns: match writing {
                Writing::Merged => Vec::new(),
                Writing::InTurn => batches().map(CommitBatch::turn).collect(),
            },
        }
    }
}

/// One change for each row: what all changes of it leave.
fn merged<'b>(changes: impl Iterator<Item = &'b RowChange>) -> Vec<RowChange> {
    let mut rows: Vec<(&RowChange, &RowChange)> = Vec::new();
    let mut positions: HashMap<RowKey, usize> = HashMap::new();
    for row in changes {
        match positions.get(&key(row)) {
            Some(at) => rows[*at].1 = row,
            None => {
                positions.insert(key(row), rows.len());
                rows.push((row, row));
            }
        }
    }
    rows.into_iter().map(|(first, last)| merge(first, last)).collect()
}

/// The expected rows that no member before had changed. What is expected of a changed row follows
/// from the change: the group commits only if the row has the version before it.
fn unchanged<'b>(batches: impl Iterator<Item = &'b CommitBatch>) -> Vec<ExpectedRow> {
    let mut changed: HashSet<RowKey> = HashSet::new();
    let mut positions: HashMap<RowKey, usize> = HashMap::new();
    let mut unchanged: Vec<ExpectedRow> = Vec::new();
    for batch in batches {
        for row in batch.expected.iter().filter(|row| !changed.contains(&expected_key(row))) {
            match positions.get(&expected_key(row)) {
                // One member that needs the lock is enough.
                Some(at) => unchanged[*at].is_locked |= row.is_locked,
                None => {
                    positions.insert(expected_key(row), unchanged.len());
                    unchanged.push(row.clone());
                }
            }
        }
        changed.extend(batch.changes.iter().map(key));
    }
    unchanged
}

/// The change of a row from what `first` expects to what `last` leaves. A delete is the only change
/// of its row.
fn merge(first: &RowChange, last: &RowChange) -> RowChange {
    let mut row = first.clone();
    if std::ptr::eq(first, last) {
        return row;
    }
    let expected = first.expected_version();
    let next = last.next_version().unwrap_or(expected);
    row.values = last.values.clone();
    row.steps = next - expected;
    if let Some(version) = row.table.table.version {
        let stored = match first.kind {
            ChangeKind::Insert => next,
            ChangeKind::Update | ChangeKind::Delete => expected,
        };
        Arc::make_mut(&mut row.values)[version] = Value::Int(stored);
    }
    row
}

fn key(row: &RowChange) -> RowKey {
    (row.table.table.key(), row.id)
}

fn expected_key(row: &ExpectedRow) -> RowKey {
    (row.table.table.key(), row.id)
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use tempfile::TempDir;
    use uuid::Uuid;

    use super::*;
    use crate::config::DataSourceConfig;
    use crate::db::{CommitError, Route, TableInfo};
    use crate::domain::{ColumnDef, ShardIdentifier, Table, ValueType};

    static WALLETS: Table = table("wallets");
    static DELIVERIES: Table = table("deliveries");

    const fn table(name: &'static str) -> Table {
        const COLUMNS: &[ColumnDef] =
            &[ColumnDef::new("id", ValueType::Uuid), ColumnDef::new("version", ValueType::Int)];
        let (schema, version, dates, state) = (None, Some(1), None, None);
        Table { schema, name, model: name, columns: COLUMNS, version, dates, state }
    }

    async fn database(url: &str) -> Arc<Database> {
        let config = DataSourceConfig::new(url);
        let database = Database::connect(ShardIdentifier::default(), &config, None).await.unwrap();
        let mut connection = database.driver.connect(Route::Primary).await.unwrap();
        for table in ["wallets", "deliveries"] {
            let columns = "id TEXT PRIMARY KEY, version INTEGER NOT NULL";
            connection.script(&format!("CREATE TABLE {table} ({columns})")).await.unwrap();
        }
        connection.close().await;
        Arc::new(database)
    }

    fn row(table: &Arc<TableInfo>, kind: ChangeKind, id: Uuid, version: i64) -> RowChange {
        let values = Arc::new(vec![Value::Uuid(id), Value::Int(version)]);
        RowChange { table: table.clone(), kind, id, values, steps: 1 }
    }

    fn part(database: &Arc<Database>, changes: Vec<RowChange>) -> ShardBatch {
        let batch = CommitBatch {
            action: ActionId(Uuid::now_v7()),
            changes,
            expected: Vec::new(),
            records: Vec::new(),
            fences: Vec::new(),
            traceable: false,
            turns: Vec::new(),
        };
        ShardBatch { database: database.clone(), batch, births: Births::default() }
    }

    struct Scratch {
        database: Arc<Database>,
        wallets: Arc<TableInfo>,
        deliveries: Arc<TableInfo>,
        _folder: TempDir,
    }

    impl Scratch {
        async fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("sqlite:{}", folder.path().join("group.db").display());
            let database = database(&url).await;
            let wallets = database.table(&WALLETS).await.unwrap();
            let deliveries = database.table(&DELIVERIES).await.unwrap();
            Self { database, wallets, deliveries, _folder: folder }
        }

        /// The turn of a call that updates a wallet and deletes a delivery.
        fn call(&self, wallet: Uuid, version: i64, delivery: Uuid) -> ShardBatch {
            let update = row(&self.wallets, ChangeKind::Update, wallet, version);
            let delete = row(&self.deliveries, ChangeKind::Delete, delivery, 1);
            part(&self.database, vec![update, delete])
        }

        async fn commits(&self, change: RowChange) -> bool {
            let batch = part(&self.database, vec![change]).batch;
            match self.database.commit(batch).await {
                Ok(_) => true,
                Err(CommitError::Stale(_)) => false,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[tokio::test]
    async fn the_deletes_of_all_members_are_committed_with_what_their_updates_leave() {
        use ChangeKind::{Delete, Insert, Update};
        let scratch = Scratch::new().await;
        let Scratch { wallets, deliveries, .. } = &scratch;
        for writing in [Writing::Merged, Writing::InTurn] {
            let [wallet, first, second] = [(); 3].map(|()| Uuid::now_v7());
            for (table, id) in [(wallets, wallet), (deliveries, first), (deliveries, second)] {
                assert!(scratch.commits(row(table, Insert, id, 1)).await);
            }
            let mut group = GroupBatch::default();
            group.join(0, scratch.call(wallet, 1, first));
            assert!(group.can_join(&scratch.call(wallet, 2, second)));
            group.join(1, scratch.call(wallet, 2, second));
            assert_eq!(group.writing(2), Writing::Merged);
            let batch = CommitBatch { traceable: false, ..group.commit(2, writing, None) };
            let changes = batch.changes.iter().map(|row| (row.kind, row.id, row.steps));
            let deletes = [first, second].map(|id| (Delete, id, 1));
            let expected = [(Update, wallet, 2), deletes[0], deletes[1]];
            assert_eq!(changes.collect::<Vec<_>>(), expected);
            scratch.database.commit(batch).await.unwrap();
            assert!(!scratch.commits(row(deliveries, Delete, first, 1)).await);
            assert!(!scratch.commits(row(deliveries, Delete, second, 1)).await);
            assert!(scratch.commits(row(wallets, Delete, wallet, 3)).await);
        }
    }

    #[tokio::test]
    async fn a_row_that_one_member_deletes_is_not_changed_by_another() {
        use ChangeKind::{Delete, Insert, Update};
        let scratch = Scratch::new().await;
        let Scratch { database, wallets, deliveries, .. } = &scratch;
        let [wallet, delivery] = [(); 2].map(|()| Uuid::now_v7());
        let mut group = GroupBatch::default();
        group.join(0, scratch.call(wallet, 1, delivery));
        for late in [
            row(deliveries, Insert, delivery, 1),
            row(deliveries, Update, delivery, 1),
            row(deliveries, Delete, delivery, 1),
            row(wallets, Delete, wallet, 2),
        ] {
            assert!(!group.can_join(&part(database, vec![late.clone()])), "{late:?}");
        }
        let mut expecting = part(database, Vec::new());
        let table = deliveries.clone();
        expecting.batch.expected =
            vec![ExpectedRow { table, id: delivery, version: 1, is_locked: true }];
        assert!(!group.can_join(&expecting));
    }
}
