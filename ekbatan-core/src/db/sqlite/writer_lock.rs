//! The lock that every writer of this process takes before SQLite's own.
//!
//! Invariant: writers of one process queue in memory, in the order in which they arrive. Only
//! writers of other processes make SQLite's busy timeout run.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::db::{DbError, DbErrorKind};

#[derive(Clone)]
pub(crate) struct WriterLock {
    mutex: Arc<Mutex<()>>,
    timeout: Duration,
}

impl WriterLock {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { mutex: Arc::default(), timeout }
    }

    pub(super) async fn acquire(&self) -> Result<OwnedMutexGuard<()>, DbError> {
        tokio::time::timeout(self.timeout, self.mutex.clone().lock_owned()).await.map_err(|_| {
            DbError::new(
                DbErrorKind::LockTimeout,
                format!(
                    "another writer of this process, perhaps an open transaction, held the database for {:?}",
                    self.timeout
                ),
            )
        })
    }
}
