//! The tasks that send the reads of a table that wait, group by group.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use uuid::Uuid;

use super::waiting::{FoldKey, ReadGroup};
use crate::db::{Database, DbError, DbErrorKind, Rows, TableInfo};
use crate::domain::Value;

/// How many ids one statement has; further reads wait for the next one.
const MAX_IDS: usize = 64;

/// A group task. Its drop ends it also if its runtime drops it.
pub(super) struct GroupTask {
    database: Arc<Database>,
    table: Arc<TableInfo>,
    key: FoldKey,
    ended: bool,
}

impl GroupTask {
    /// Starts a task that is counted already.
    pub(super) fn start(
        database: &Arc<Database>,
        table: &Arc<TableInfo>,
        key: FoldKey,
        runtime: &Handle,
    ) {
        let (database, table) = (database.clone(), table.clone());
        let task = Self { database, table, key, ended: false };
        drop(runtime.spawn(task.run()));
    }

    async fn run(mut self) {
        let mut took = None;
        while let Some(group) = self.database.folded_reads.take(self.key, MAX_IDS, took) {
            took = self.send(group).await;
        }
        self.ended = true;
    }

    /// Sends the reads of a group as one statement and answers each of them. Returns how long a
    /// statement took that did not fail.
    ///
    /// If the statement of several ids fails, the fault may be that of one row. The readers are
    /// then dropped without an answer, and each of them reads by itself.
    async fn send(&self, group: ReadGroup) -> Option<Duration> {
        let ids: Vec<Uuid> = group.readers.keys().copied().collect();
        let query = self.table.by_ids(self.database.driver.syntax(), &ids);
        let sent = Instant::now();
        match self.database.fetch(&query, self.key.route, group.holder).await {
            Ok(rows) => {
                let took = sent.elapsed();
                answer(group, rows);
                return Some(took);
            }
            Err(error) if ids.len() == 1 || concerns_all(&error) => refuse(group, &error),
            Err(error) => {
                let ids = ids.len();
                tracing::debug!(%error, ids, "a folded read failed; its readers read by themselves");
            }
        }
        None
    }
}

impl Drop for GroupTask {
    fn drop(&mut self) {
        if !self.ended {
            self.database.folded_reads.end_dead_group(self.key);
        }
    }
}

/// Whether the cause of an error is not the statement, so that each read would meet it.
fn concerns_all(error: &DbError) -> bool {
    use DbErrorKind::{Overloaded, PoolTimeout, Unavailable};
    matches!(error.kind(), Unavailable | PoolTimeout | Overloaded)
}

fn answer(group: ReadGroup, rows: Rows) {
    let mut readers = group.readers;
    for row in rows {
        let Some(Value::Uuid(id)) = row.first() else { continue };
        let mut of_row = readers.remove(id).unwrap_or_default();
        let last = of_row.pop();
        for reader in of_row {
            let _ = reader.send(Ok(Some(row.clone())));
        }
        if let Some(reader) = last {
            let _ = reader.send(Ok(Some(row)));
        }
    }
    for reader in readers.into_values().flatten() {
        let _ = reader.send(Ok(None));
    }
}

fn refuse(group: ReadGroup, error: &DbError) {
    for reader in group.readers.into_values().flatten() {
        let _ = reader.send(Err(error.copy()));
    }
}
