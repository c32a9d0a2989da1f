//! On which shards the fences of one execution stand.
//!
//! What always holds: a shard's fences are raised before the execution reads anything there,
//! and once; a raise that was refused is remembered, whatever becomes of its error.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::sync::OnceCell;
use tokio::time::Instant;

use super::{Databases, visit};
use crate::db::{Database, DbError, FenceCheck, FenceRaise, Query, Route, Rows, TableInfo};
use crate::domain::ShardIdentifier;

/// The leases of an execution, and where their fences were raised. Attempts share it: what
/// stands need not be raised again, and if it stands no more the commit is refused.
pub(crate) struct Fencing {
    raises: Vec<FenceRaise>,
    shards: Mutex<BTreeMap<ShardIdentifier, Arc<OnceCell<()>>>>,
    /// The key of the first lease that is known to be over.
    lost: OnceLock<String>,
}

/// Why a fence does not stand.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FencingError {
    #[error("the lease of `{0}` is over")]
    Lost(String),
    #[error(transparent)]
    Database(#[from] DbError),
}

impl Fencing {
    /// `to_disk` says that a shard may be read which is not committed on.
    pub(crate) fn new(
        before: Option<&Self>,
        check: FenceCheck,
        until: Instant,
        to_disk: bool,
    ) -> Self {
        let mut raises = before.map(|before| before.raises.clone()).unwrap_or_default();
        raises.push(FenceRaise { check, until, to_disk });
        // In one order, as whoever raises one of them stands between those who share it.
        raises.sort_by(|a, b| a.check.key.cmp(&b.check.key));
        Self { raises, shards: Mutex::default(), lost: OnceLock::new() }
    }

    pub(crate) fn checks(&self) -> Vec<FenceCheck> {
        self.raises.iter().map(|raise| raise.check.clone()).collect()
    }

    /// The key of a lease that is known to be over: its time has passed, or a raise was refused.
    pub(crate) fn over(&self) -> Option<&str> {
        let late = || self.raises.iter().find(|raise| Instant::now() >= raise.until);
        self.refused().or_else(|| late().map(|raise| raise.check.key.as_str()))
    }

    /// The key of a lease of which a shard had a later one's fence.
    pub(crate) fn refused(&self) -> Option<&str> {
        self.lost.get().map(String::as_str)
    }

    /// Whether it was raised on no shard yet.
    pub(crate) fn stands_nowhere(&self) -> bool {
        !self.shards().values().any(|shard| shard.initialized())
    }

    /// Makes sure that the fence stands on a shard, in a trip of its own if need be.
    pub(crate) async fn stand(
        &self,
        database: &Database,
        holder: &'static str,
    ) -> Result<(), FencingError> {
        let raising = || async { self.raise(database, None, holder).await.map(drop) };
        self.standing(database).get_or_try_init(raising).await.map(drop)
    }

    /// Raises the fence on a shard whether or not it stands there, to be told if it was passed.
    pub(crate) async fn stand_again(
        &self,
        database: &Database,
        holder: &'static str,
    ) -> Result<(), FencingError> {
        self.raise(database, None, holder).await.map(drop)
    }

    /// Reads on a shard's primary once the fence stands there. The read of a table by id
    /// raises it in its own trip, where the shard was not read before.
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
        // Those who come while it is raised wait here, and then see what it has waited for.
        self.standing(database).get_or_try_init(raising).await?;
        match found {
            Some(rows) => Ok(rows),
            None => Ok(database.fetch(query, Route::Primary, holder).await?),
        }
    }

    /// Raises the fences one after another, the last in the trip of the read.
    async fn raise(
        &self,
        database: &Database,
        read: Option<(&Query, &TableInfo)>,
        holder: &'static str,
    ) -> Result<Rows, FencingError> {
        if let Some(key) = self.over() {
            return Err(self.lose(key));
        }
        let mut rows = Rows::new();
        for (n, raise) in (1..).zip(&self.raises) {
            let read = read.filter(|_| n == self.raises.len());
            let raised = database.raise_fence(raise, read, holder).await?;
            rows = raised.ok_or_else(|| self.lose(&raise.check.key))?;
        }
        Ok(rows)
    }

    fn lose(&self, key: &str) -> FencingError {
        FencingError::Lost(self.lost.get_or_init(|| key.to_owned()).clone())
    }

    fn standing(&self, database: &Database) -> Arc<OnceCell<()>> {
        self.shards().entry(database.shard).or_default().clone()
    }

    fn shards(&self) -> std::sync::MutexGuard<'_, BTreeMap<ShardIdentifier, Arc<OnceCell<()>>>> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Databases {
    /// Shuts out every lease of a key whose token is smaller than this one, on every shard:
    /// when this has returned, nothing commits under such a lease any more, and what was on its
    /// way has committed or failed. For a lease that was ended by force while its holder may
    /// not know of it.
    ///
    /// Every shard is told, also if one before it fails; telling it again changes nothing.
    pub async fn fence_off(&self, key: &str, token: i64) -> Result<(), DbError> {
        let check = FenceCheck { key: key.to_owned(), token };
        let raise = &FenceRaise { check, until: Instant::now(), to_disk: true };
        let told = self.shards.all().map(|database| async move {
            database.raise_fence(raise, None, "fence").await.map(drop)
        });
        visit(told.collect()).await.into_iter().collect()
    }
}
