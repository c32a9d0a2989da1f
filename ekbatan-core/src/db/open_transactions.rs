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
}

fn address<D>(database: &D) -> usize {
    std::ptr::from_ref(database) as usize
}

/// Whether the current task has a writing transaction of the database open.
pub(super) fn is_writing<D>(database: &D) -> bool {
    let database = address(database);
    OPEN.try_with(|open| open.iter().any(|entry| entry.database == database && entry.writes))
        .unwrap_or_default()
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
        open.push(OpenEntry { database, writes });
        Some(Self(open))
    }

    pub(super) fn scope<F: Future>(self, work: F) -> impl Future<Output = F::Output> {
        OPEN.scope(self.0, work)
    }
}
