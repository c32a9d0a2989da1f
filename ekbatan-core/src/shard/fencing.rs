//! The fences of one execution, by shard.
//!
//! Invariants: the fences of a shard are raised once, before the execution reads anything there,
//! and again before a commit if a lease was extended meanwhile; a refused raise is recorded even
//! if the caller drops its error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{Databases, visit};
use crate::db::{
    Database, DbError, FenceCheck, FenceRaise, LeaseEnd, Query, Route, Rows, TableInfo,
};
use crate::domain::ShardIdentifier;

/// The least difference by which a lease counts as extended: two readings of its end differ a
/// little.
const EXTENDED: Duration = Duration::from_millis(1);

/// The leases of an execution, and the shards on which their fences were raised. All attempts
/// share it: a raised fence is not raised again, and the commit is refused if it was passed.
pub(crate) struct Fencing {
    raises: Vec<FenceRaise>,
    shards: Mutex<BTreeMap<ShardIdentifier, Arc<OnceCell<()>>>>,
    /// When the leases ended, as far as was known when the fences of a shard were raised last.
    raised_until: Mutex<BTreeMap<ShardIdentifier, Vec<Instant>>>,
    /// The key of the first lease that is known to have ended.
    lost: OnceLock<String>,
}

/// A fence could not be raised.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FencingError {
    #[error("the lease of `{0}` has ended")]
    Lost(String),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl Fencing {
    /// `to_disk` is set if the execution may read a shard without committing on it.
    pub(crate) fn new(
        before: Option<&Self>,
        check: FenceCheck,
        until: LeaseEnd,
        to_disk: bool,
    ) -> Self {
        let mut raises = before.map(|before| before.raises.clone()).unwrap_or_default();
        raises.push(FenceRaise { check, until, to_disk });
        // All executions raise fences in the same order, so that they cannot deadlock.
        raises.sort_by(|a, b| a.check.key.cmp(&b.check.key));
        Self {
            raises,
            shards: Mutex::default(),
            raised_until: Mutex::default(),
            lost: OnceLock::new(),
        }
    }

    pub(crate) fn checks(&self) -> Vec<FenceCheck> {
        self.raises.iter().map(|raise| raise.check.clone()).collect()
    }

    /// The key of a lease that is known to have ended: it expired, or a raise was refused.
    pub(crate) fn over(&self) -> Option<&str> {
        let late = || self.raises.iter().find(|raise| raise.until.is_over());
        self.refused().or_else(|| late().map(|raise| raise.check.key.as_str()))
    }

    /// The key of a lease whose raise was refused because a shard had a later fence.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Whether no fence was raised on any shard yet.
    pub(crate) fn stands_nowhere(&self) -> bool {
        !self.shards().values().any(|shard| shard.initialized())
    }

    /// Ensures that the fences are raised on a shard, with a separate round trip if needed.
    pub(crate) async fn stand(
        &self,
        database: &Database,
        holder: &'static str,
    ) -> Result<(), FencingError> {
        let raising = || async { self.raise(database, None, holder).await.map(drop) };
        self.standing(database).get_or_try_init(raising).await.map(drop)
    }

    /// Ensures that the fences are raised on a shard and last as long as the leases do now, before
    /// a commit there.
    pub(crate) async fn stand_for_commit(
        &self,
        database: &Database,
        holder: &'static str,
    ) -> Result<(), FencingError> {
        self.stand(database, holder).await?;
        if self.is_extended(database.shard) {
            self.raise(database, None, holder).await?;
        }
        Ok(())
    }

    /// Whether a lease ends later than was known when the fences of the shard were raised.
    fn is_extended(&self, shard: ShardIdentifier) -> bool {
        let raised = self.raised_until.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(raised) = raised.get(&shard) else { return false };
        self.raises.iter().zip(raised).any(|(raise, until)| raise.until.get() > *until + EXTENDED)
    }

    /// Raises the fences on a shard again, to detect whether a later lease passed them.
    pub(crate) async fn stand_again(
        &self,
        database: &Database,
        holder: &'static str,
    ) -> Result<(), FencingError> {
        self.raise(database, None, holder).await.map(drop)
    }

    /// Reads on a shard's primary after the fences were raised there. On the first read of a shard, a
    /// read by id raises them in its own round trip.
    pub(crate) async fn fetch(
        &self,
        database: &Database,
        query: &Query,
        by_id_in: Option<&TableInfo>,
        holder: &'static str,
    ) -> Result<Rows, FencingError> {
        let mut found = None;
        let slot = &mut found;
        let raising = || async move {
            let rows = self.raise(database, by_id_in.map(|table| (query, table)), holder).await?;
            *slot = by_id_in.map(|_| rows);
            Ok::<(), FencingError>(())
        };
        // Concurrent readers wait here until the fences are raised.
        self.standing(database).get_or_try_init(raising).await?;
        match found {
            Some(rows) => Ok(rows),
            None => Ok(database.fetch(query, Route::Primary, holder).await?),
        }
    }

    /// Raises the fences one after another, the last one in the round trip of the read.
    async fn raise(
        &self,
        database: &Database,
        read: Option<(&Query, &TableInfo)>,
        holder: &'static str,
    ) -> Result<Rows, FencingError> {
        if let Some(key) = self.over() {
            return Err(self.lose(key));
        }
        let until = self.raises.iter().map(|raise| raise.until.get()).collect();
        let mut rows = Rows::new();
        for (n, raise) in (1..).zip(&self.raises) {
            let read = read.filter(|_| n == self.raises.len());
            let raised = database.raise_fence(raise, read, holder).await?;
            rows = raised.ok_or_else(|| self.lose(&raise.check.key))?;
        }
        let mut raised = self.raised_until.lock().unwrap_or_else(PoisonError::into_inner);
        raised.insert(database.shard, until);
        drop(raised);
        Ok(rows)
    }

    fn lose(&self, key: &str) -> FencingError {
        self.record_loss(key);
        FencingError::Lost(key.to_owned())
    }

    /// Records that a commit was refused because the lease on a key had ended.
    pub(crate) fn record_loss(&self, key: &str) {
        self.lost.get_or_init(|| key.to_owned());
    }

    fn standing(&self, database: &Database) -> Arc<OnceCell<()>> {
        self.shards().entry(database.shard).or_default().clone()
    }

    fn shards(&self) -> std::sync::MutexGuard<'_, BTreeMap<ShardIdentifier, Arc<OnceCell<()>>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Databases {
    /// Rejects every lease of a key whose token is smaller than `token`, on every shard. After
    /// this returns, nothing commits under such a lease, and commits that were running have
    /// committed or failed. Use it after a lease was ended by force and its holder may not know.
    /// Where the key has no fence and the token is more than 30 days old, nothing is stored: a
    /// token that old raises no fence.
    ///
    /// Every shard is called even if another one fails; the error names the first that did. Calling it
    /// again changes nothing.
    pub async fn fence_off(&self, key: &str, token: i64) -> Result<(), DbError> {
        let check = FenceCheck { key: key.to_owned(), token };
        let raise =
            &FenceRaise { check, until: LeaseEnd::new(Instant::now(), None), to_disk: true };
        let told = self.shards.all().map(|database| async move {
            let raised = database.raise_fence(raise, None, "fence").await;
            raised.map(drop).map_err(|error| error.at(format_args!("shard {}", database.shard)))
        });
        visit(told.collect()).await.into_iter().collect()
    }
}
