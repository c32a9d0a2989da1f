//! The databases on which the current task has a transaction of the transaction manager open.

use std::future::Future;

tokio::task_local! {
    static OPEN: Vec<OpenEntry>;
}

#[derive(Clone, Copy)]
struct OpenEntry {
    /// The address of the database's value, which identifies it within the process.
    database: usize,
    writes: bool,
    side: Side,
}

/// Where the current task stands with a transaction that it has open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    /// In its closure.
    Inside,
    /// In its closure, in a part that is [outside on purpose](outside_transaction).
    Outside,
}

fn address<D>(database: &D) -> usize {
    std::ptr::from_ref(database) as usize
}

/// The writing transaction of the database that the current task has open, if it has one.
pub(super) fn open_transaction<D>(database: &D) -> Option<Side> {
    let database = address(database);
    let find = |open: &Vec<OpenEntry>| {
        open.iter().find(|entry| entry.database == database && entry.writes).map(|entry| entry.side)
    };
    OPEN.try_with(find).unwrap_or_default()
}

/// Whether the current task has a transaction of the database open, also one that only reads.
pub(super) fn has_open_transaction<D>(database: &D) -> bool {
    let database = address(database);
    OPEN.try_with(|open| open.iter().any(|entry| entry.database == database)).unwrap_or_default()
}

/// Runs `work`, whose writes are meant to commit beside the transactions that the task has open.
pub(crate) async fn outside_transaction<F: Future>(work: F) -> F::Output {
    let mut open = OPEN.try_with(Clone::clone).unwrap_or_default();
    open.iter_mut().for_each(|entry| entry.side = Side::Outside);
    OPEN.scope(open, work).await
}

/// The transactions that the current task has open, with one more.
pub(super) struct OpenTransactions(Vec<OpenEntry>);

impl OpenTransactions {
    /// `None` if the task already has a transaction of this database open.
    pub(super) fn with<D>(database: &D, writes: bool) -> Option<Self> {
        let database = address(database);
        let mut open = OPEN.try_with(Clone::clone).unwrap_or_default();
        if open.iter().any(|entry| entry.database == database) {
            return None;
        }
        open.push(OpenEntry { database, writes, side: Side::Inside });
        Some(Self(open))
    }

    pub(super) fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        OPEN.scope(self.0, work)
    }
}
