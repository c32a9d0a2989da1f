//! Deleting rows of keys that nobody has used for long.
//!
//! Invariants: a row is deleted only if its key is free and its token is older than a day, and only
//! in the state in which it was seen. Tokens begin with the clock of the cluster, so they grow unless
//! that was set back by more than a day. What is deleted lies in the past, so that the deletion hides
//! nothing that is written afterwards.

use std::sync::Arc;

use ekbatan_lock::{BackendError, CleaningSlices};

use crate::client::{Change, RowOp};
use crate::locks::Locks;
use crate::row::LockRow;

/// Deletes old rows, slice by slice.
pub(crate) struct Cleaner {
    locks: Arc<Locks>,
    slices: CleaningSlices,
}

impl Cleaner {
    pub(crate) fn new(locks: Arc<Locks>) -> Self {
        Self { locks, slices: CleaningSlices::default() }
    }

    /// Counts a release, and deletes old rows if that is due. The caller does not wait for it.
    pub(crate) fn released(self: &Arc<Self>, key: &str) {
        self.slices.released(key);
        let Some(after) = self.slices.next() else { return };
        let cleaner = self.clone();
        tokio::spawn(async move {
            if let Err(error) = cleaner.clean(&after).await {
                tracing::debug!(%error, "old rows of locks stay");
            }
        });
    }

    async fn clean(&self, after: &str) -> Result<(), BackendError> {
        let (locks, (first, end)) = (&self.locks, self.locks.names.range(""));
        let mut from = locks.names.row(after).unwrap_or(first);
        let (mut looked_at, mut last, mut deletions) = (0, None, Vec::new());
        loop {
            let page = locks.client.page(&from, &end, CleaningSlices::ROWS - looked_at).await?;
            looked_at += page.rows.len();
            let now = locks.clock.now();
            for (name, cells) in page.rows {
                last = locks.names.key(&name);
                let Ok(row) = LockRow::read(&name, cells) else { continue };
                if is_old(&row, now) {
                    let change = Change::Delete(row.expected(), row.stamp());
                    deletions.push(RowOp { row: name, change: Some(change) });
                }
            }
            match page.next.filter(|_| looked_at < CleaningSlices::ROWS) {
                Some(next) => from = next,
                None => break,
            }
        }
        self.slices.looked_at(looked_at, last);
        if !deletions.is_empty() {
            locks
                .client
                .exchange_all(deletions)
                .await
                .into_iter()
                .try_for_each(|it| it.map(drop))?;
        }
        Ok(())
    }
}

/// Whether nobody has used the key for long.
fn is_old(row: &LockRow, now: u64) -> bool {
    let kept = u64::try_from(CleaningSlices::KEPT.as_millis()).unwrap_or(u64::MAX);
    let is_past = |time: u64| time.saturating_add(kept) < now;
    let token = u64::try_from(row.token()).unwrap_or_default();
    // The stamp, too: it may be that of a row that was made by an operator.
    row.stamp() > 0 && is_past(row.stamp()) && is_past(token) && row.standing().is_none()
}
