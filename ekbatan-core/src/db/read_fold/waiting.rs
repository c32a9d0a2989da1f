//! The reads by id that are in flight or wait, by table.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::pace::ReadPace;
use crate::db::{DbError, Route, TableInfo};
use crate::domain::{TableKey, Value};

/// The row that a read found.
pub(super) type FoundRow = Result<Option<Vec<Value>>, DbError>;

/// What reads must have in common to share a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FoldKey {
    pub(super) table: TableKey,
    pub(super) route: Route,
    pub(super) runtime: runtime::Id,
}

/// The reads by id of one database that are in flight or wait.
#[derive(Default)]
pub(crate) struct FoldedReads(Mutex<ReadLists>);

#[derive(Default)]
struct ReadLists {
    tables: HashMap<FoldKey, TableReads>,
    paces: HashMap<Route, ReadPace>,
}

/// The reads of one table. Exists while a read or a group task is in flight.
struct TableReads {
    /// The table as these reads know it. After a migration others may know it differently.
    table: Arc<TableInfo>,
    /// Whether a read is in flight that its caller drives.
    has_lone_read: bool,
    /// How many group tasks run.
    groups: usize,
    /// When a group task sent a statement last.
    last_sent: Instant,
    /// Only while a group task runs.
    waiting: Vec<WaitingRead>,
}

struct WaitingRead {
    id: Uuid,
    holder: &'static str,
    answer: oneshot::Sender<FoundRow>,
}

/// How a read has to go on.
pub(super) enum Admission<'a> {
    /// It goes by itself; others wait as long as the guard exists.
    Alone(LoneRead<'a>),
    /// It waits for a group task, which the caller has to start if `starts_group` is set. The task
    /// is counted already.
    Waits { answer: oneshot::Receiver<FoundRow>, starts_group: bool },
    /// It goes by itself, and others need not know.
    Apart,
}

/// Guard: a read that its caller drives.
pub(super) struct LoneRead<'a> {
    reads: &'a FoldedReads,
    key: FoldKey,
}

/// The reads that share a statement: the readers of each id.
pub(super) struct ReadGroup {
    /// The name under which the group holds its connection: that of the first reader.
    pub(super) holder: &'static str,
    pub(super) readers: BTreeMap<Uuid, Vec<oneshot::Sender<FoundRow>>>,
}

impl FoldedReads {
    pub(super) fn admit(
        &self,
        key: FoldKey,
        table: &Arc<TableInfo>,
        id: Uuid,
        holder: &'static str,
    ) -> Admission<'_> {
        let mut lists = self.lists();
        let ReadLists { tables, paces } = &mut *lists;
        let Some(reads) = tables.get_mut(&key) else {
            tables.insert(key, TableReads::new(table));
            return Admission::Alone(LoneRead { reads: self, key });
        };
        if !Arc::ptr_eq(&reads.table, table) {
            return Admission::Apart;
        }
        if reads.waiting.len() == reads.waiting.capacity() {
            // Keeps no read whose caller has gone while the tasks wait for a silent server.
            reads.waiting.retain(|read| !read.answer.is_closed());
        }
        let (sender, answer) = oneshot::channel();
        reads.waiting.push(WaitingRead { id, holder, answer: sender });
        let pace = paces.get(&key.route).copied().unwrap_or_default();
        let starts_group = reads.groups < pace.max_groups(reads.last_sent.elapsed());
        reads.groups += usize::from(starts_group);
        Admission::Waits { answer, starts_group }
    }

    /// Takes all reads that wait, up to so many ids. If none waits, the group task has ended.
    /// `took` is how long the statement before took, if it was answered.
    pub(super) fn take(
        &self,
        key: FoldKey,
        max_ids: usize,
        took: Option<Duration>,
    ) -> Option<ReadGroup> {
        let mut lists = self.lists();
        if let Some(took) = took {
            lists.paces.entry(key.route).or_default().record(took);
        }
        let reads = lists.tables.get_mut(&key)?;
        let group = reads.take(max_ids);
        if group.is_none() {
            reads.groups -= 1;
            lists.forget_idle(key);
        }
        group
    }

    /// Ends a group task that has died. What waits is dropped, so that the callers go on.
    pub(super) fn end_dead_group(&self, key: FoldKey) {
        let mut lists = self.lists();
        let Some(reads) = lists.tables.get_mut(&key) else { return };
        reads.groups -= 1;
        let waiting = std::mem::take(&mut reads.waiting);
        lists.forget_idle(key);
        drop(lists);
        drop(waiting); // wakes the callers, which must not happen under the lock
    }

    /// The state is consistent between statements, so a panic elsewhere does not invalidate it.
    fn lists(&self) -> MutexGuard<'_, ReadLists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReadLists {
    fn forget_idle(&mut self, key: FoldKey) {
        if self.tables.get(&key).is_some_and(|reads| !reads.has_lone_read && reads.groups == 0) {
            self.tables.remove(&key);
        }
    }
}

impl TableReads {
    /// With a first read, which its caller drives.
    fn new(table: &Arc<TableInfo>) -> Self {
        Self {
            table: table.clone(),
            has_lone_read: true,
            groups: 0,
            last_sent: Instant::now(),
            waiting: Vec::new(),
        }
    }

    fn take(&mut self, max_ids: usize) -> Option<ReadGroup> {
        let mut group: Option<ReadGroup> = None;
        for read in std::mem::take(&mut self.waiting) {
            if read.answer.is_closed() {
                continue; // its caller has gone
            }
            let group = group.get_or_insert_with(|| ReadGroup::new(read.holder));
            if group.readers.len() < max_ids || group.readers.contains_key(&read.id) {
                group.readers.entry(read.id).or_default().push(read.answer);
            } else {
                self.waiting.push(read);
            }
        }
        if group.is_some() {
            self.last_sent = Instant::now();
        }
        group
    }
}

impl Drop for LoneRead<'_> {
    fn drop(&mut self) {
        let mut lists = self.reads.lists();
        if let Some(reads) = lists.tables.get_mut(&self.key) {
            reads.has_lone_read = false;
        }
        lists.forget_idle(self.key);
    }
}

impl ReadGroup {
    fn new(holder: &'static str) -> Self {
        Self { holder, readers: BTreeMap::new() }
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::db::fixtures::{WALLETS, table};

    struct Reads {
        reads: FoldedReads,
        table: Arc<TableInfo>,
        key: FoldKey,
    }

    impl Reads {
        fn new() -> Self {
            let runtime = runtime::Handle::current().id();
            let key = FoldKey { table: WALLETS.key(), route: Route::Primary, runtime };
            Self { reads: FoldedReads::default(), table: table(&WALLETS, |_| ""), key }
        }

        fn admit(&self, id: u128) -> Admission<'_> {
            self.reads.admit(self.key, &self.table, Uuid::from_u128(id), "a test")
        }

        /// Admits a read that has to wait.
        fn wait(&self, id: u128) -> (oneshot::Receiver<FoundRow>, bool) {
            match self.admit(id) {
                Admission::Waits { answer, starts_group } => (answer, starts_group),
                _ => panic!("read {id} does not wait"),
            }
        }

        fn is_idle(&self) -> bool {
            self.reads.lists().tables.is_empty()
        }
    }

    #[tokio::test]
    async fn only_reads_in_flight_are_kept() {
        let reads = Reads::new();
        let Admission::Alone(lone_read) = reads.admit(1) else { panic!("the first read waits") };
        drop(lone_read);
        assert!(reads.is_idle());

        let Admission::Alone(lone_read) = reads.admit(1) else { panic!("the first read waits") };
        let (_answer, starts_group) = reads.wait(2);
        assert!(starts_group);
        drop(lone_read);
        assert!(reads.reads.take(reads.key, 64, None).is_some());
        assert!(reads.reads.take(reads.key, 64, None).is_none());
        assert!(reads.is_idle());
    }

    #[tokio::test]
    async fn a_group_has_each_id_once_and_no_caller_that_has_gone() {
        let reads = Reads::new();
        let _lone_read = reads.admit(0);
        let gone = reads.wait(9);
        let waiting: Vec<_> = [1, 2, 1, 3, 2].map(|id| reads.wait(id)).into();
        drop(gone);
        let group = reads.reads.take(reads.key, 2, None).unwrap();
        let readers: Vec<_> =
            group.readers.iter().map(|(id, readers)| (id.as_u128(), readers.len())).collect();
        assert_eq!(readers, [(1, 2), (2, 2)]);
        let group = reads.reads.take(reads.key, 2, None).unwrap();
        assert_eq!(group.readers.keys().map(Uuid::as_u128).collect::<Vec<_>>(), [3]);
        drop(waiting);
    }

    #[tokio::test]
    async fn callers_that_have_gone_are_not_kept_while_nobody_takes_them() {
        let reads = Reads::new();
        let _lone_read = reads.admit(0);
        let _waiting = reads.wait(1);
        for id in 0..10_000 {
            drop(reads.wait(id));
        }
        let kept = reads.reads.lists().tables[&reads.key].waiting.len();
        assert!(kept < 100, "{kept} reads are kept for one that waits");
    }

    #[tokio::test]
    async fn a_table_that_was_described_anew_shares_no_statement() {
        let reads = Reads::new();
        let _lone_read = reads.admit(0);
        let changed = table(&WALLETS, |_| "text");
        let admission = reads.reads.admit(reads.key, &changed, Uuid::from_u128(1), "a test");
        assert!(matches!(admission, Admission::Apart));
    }

    #[tokio::test]
    async fn a_dead_group_leaves_its_readers_to_themselves() {
        let reads = Reads::new();
        let lone_read = reads.admit(0);
        let waiting = reads.wait(1);
        reads.reads.end_dead_group(reads.key);
        assert!(waiting.0.await.is_err());
        assert!(reads.wait(2).1, "the next read starts a task");
        reads.reads.end_dead_group(reads.key);
        drop(lone_read);
        assert!(reads.is_idle());
    }
}
