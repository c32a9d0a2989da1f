//! The reads of a repository.

use std::collections::BTreeMap;

use futures_core::Stream;
use futures_util::stream;
use uuid::Uuid;

use super::merge::{Merged, merge_page};
use super::page::TextOrder;
use super::scatter::{Reachable, all, ask};
use super::source::{Source, stored};
use super::{Condition, Page, PageRequest, ReadError, Repository};
use crate::domain::{Entity, EntityId, Stored};
use crate::shard::visit;

/// A read that finds more rows than this by a condition reports none of them: its call is not about
/// one of them. A stream, which is for many rows, reports none either.
const MOST_REPORTED: usize = 16;

impl<T: Entity> Repository<T> {
    /// Returns the row with this id, or an error if there is none.
    pub async fn get(&self, id: T::Id) -> Result<Stored<T>, ReadError> {
        self.find(id).await?.ok_or(ReadError::NotFound { model: T::TABLE.model, id: id.uuid() })
    }

    /// Returns the row with this id, if there is one.
    pub async fn find(&self, id: T::Id) -> Result<Option<Stored<T>>, ReadError> {
        if let Some(pending) = self.pending_row(id).await {
            return Ok(pending);
        }
        match self.source_of(id).await? {
            Some(source) => source.find(id.uuid()).await,
            None => Ok(None),
        }
    }

    /// Whether there is a row with this id.
    pub async fn exists(&self, id: T::Id) -> Result<bool, ReadError> {
        if let Some(pending) = self.pending_row(id).await {
            return Ok(pending.is_some());
        }
        match self.source_of(id).await? {
            Some(source) => source.exists(id.uuid()).await,
            None => Ok(false),
        }
    }

    /// Returns the rows with these ids, each once, in no particular order. Ids without a row are
    /// left out. Each shard with some of the ids is queried once.
    pub async fn find_by_ids(&self, ids: &[T::Id]) -> Result<Vec<Stored<T>>, ReadError> {
        let mut by_shard: BTreeMap<_, Ids<T>> = BTreeMap::new();
        let (pending, ids) = self.pending_rows(ids).await;
        let found = ids.iter().map(|id| async move { (id, self.source_of(*id).await) });
        for (id, source) in visit(found.collect()).await {
            if let Some(source) = source? {
                let of_shard = by_shard
                    .entry(source.shard())
                    .or_insert_with(|| Ids { source, ids: Vec::new() });
                of_shard.ids.push(id.uuid());
            }
        }
        let asked = by_shard.into_values().map(|Ids { source, ids }| async move {
            let found = source.find_by_ids(&ids).await;
            (source.shard(), found)
        });
        let found = all(asked.collect()).await?.into_iter().flatten();
        Ok(pending.into_iter().chain(found).collect())
    }

    /// Returns all rows. For more rows than fit into memory use [`Repository::stream`].
    pub async fn find_all(&self) -> Result<Vec<Stored<T>>, ReadError> {
        self.find_where(Condition::all()).await
    }

    /// Returns the rows that match a condition.
    pub async fn find_where(&self, condition: Condition<T>) -> Result<Vec<Stored<T>>, ReadError> {
        self.settle_pending().await;
        let condition = &condition;
        let asked = ask!(self.sources(), |source| source.find_where(condition, "").await);
        let rows: Vec<_> = all(asked).await?.into_iter().flatten().collect();
        self.meet_all(&rows).await;
        Ok(rows)
    }

    /// Returns the rows that match a condition from all shards that can be read, and lists the
    /// shards that failed.
    pub async fn find_where_reachable(
        &self,
        condition: Condition<T>,
    ) -> Result<Reachable<T>, ReadError> {
        self.settle_pending().await;
        let mut rows = Vec::new();
        let mut unreachable = Vec::new();
        let condition = &condition;
        let asked = ask!(self.sources(), |source| source.find_where(condition, "").await);
        for (shard, answer) in visit(asked).await {
            match answer {
                Ok(found) => rows.extend(found),
                Err(error) if error.is_of_one_database() => {
                    unreachable.push(super::ShardFailure { shard, error });
                }
                Err(error) => return Err(error),
            }
        }
        self.meet_all(&rows).await;
        Ok(Reachable { rows, unreachable })
    }

    /// Returns the row that matches a condition, if there is one. Several rows are an error.
    pub async fn find_one(&self, condition: Condition<T>) -> Result<Option<Stored<T>>, ReadError> {
        self.settle_pending().await;
        let condition = &condition;
        let asked = ask!(self.sources(), |source| source.find_where(condition, " LIMIT 2").await);
        let mut rows: Vec<_> = all(asked).await?.into_iter().flatten().collect();
        if rows.len() > 1 {
            return Err(ReadError::NotUnique { model: T::TABLE.model });
        }
        self.meet_all(&rows).await;
        Ok(rows.pop())
    }

    /// Counts all rows.
    pub async fn count(&self) -> Result<u64, ReadError> {
        self.count_where(Condition::all()).await
    }

    /// Counts the rows that match a condition.
    pub async fn count_where(&self, condition: Condition<T>) -> Result<u64, ReadError> {
        self.settle_pending().await;
        let condition = &condition;
        let asked = ask!(self.sources(), |source| source.count_where(condition).await);
        Ok(all(asked).await?.into_iter().sum())
    }

    /// Whether a row matches a condition.
    pub async fn exists_where(&self, condition: Condition<T>) -> Result<bool, ReadError> {
        self.settle_pending().await;
        let condition = &condition;
        let asked = ask!(self.sources(), |source| source.exists_where(condition).await);
        Ok(all(asked).await?.contains(&true))
    }

    /// Returns one page of rows, in order. On several shards texts are ordered by their bytes,
    /// because the collations of the shards may differ; if one of them is in MariaDB, by their first
    /// 1,000 bytes.
    pub async fn page(&self, request: PageRequest<T>) -> Result<Page<T>, ReadError> {
        self.settle_pending().await;
        let sources = self.sources();
        let texts = Source::order_of_texts(&sources);
        let asked = &request;
        let asked = ask!(sources, |source| source.page(asked, texts).await);
        let mut pages = all(asked).await?;
        let rows = match (texts, pages.pop()) {
            (TextOrder::OfDatabase, only) => only.unwrap_or_default(),
            (_, last) => {
                pages.extend(last);
                let sorting = request
                    .sorting()
                    .map_err(|source| ReadError::Condition { model: T::TABLE.model, source })?;
                merge_page(pages, &sorting, texts, request.size)
            }
        };
        let next = request.following(&rows);
        let rows: Vec<_> = rows.into_iter().map(stored).collect::<Result<_, _>>()?;
        self.meet_all(&rows).await;
        Ok(Page { rows, next })
    }

    /// Streams all rows that match a condition, ordered by id, reading a page at a time.
    ///
    /// The stream holds no connection between pages, so it is not one snapshot: each row is
    /// returned as it was when its page was read.
    pub fn stream(
        &self,
        condition: Condition<T>,
    ) -> impl Stream<Item = Result<Stored<T>, ReadError>> + Send + 'static {
        let rows = Merged::new(self.sources(), PageRequest::first(1).filter(condition));
        stream::try_unfold((self.clone(), rows), |(repository, mut rows)| async move {
            repository.settle_pending().await;
            let row = rows.next().await?;
            Ok(row.map(|row| (row, (repository, rows))))
        })
    }
}

impl<T: Entity> Repository<T> {
    /// The pending state of a row: `Some(None)` if it is going to be deleted, and `None` if
    /// the database must be asked.
    async fn pending_row(&self, id: T::Id) -> Option<Option<Stored<T>>> {
        self.meet(id.uuid()).await;
        let row = self.pending.as_ref()?.find((T::TABLE.key(), id.uuid()))?;
        if row.deleted {
            return Some(None);
        }
        let stored = row.stored().cloned();
        if stored.is_none() {
            self.settle_pending().await;
        }
        stored.map(Some)
    }

    /// The pending rows, and the ids for which the database must be asked.
    async fn pending_rows(&self, ids: &[T::Id]) -> (Vec<Stored<T>>, Vec<T::Id>) {
        if self.pending.is_none() {
            return (Vec::new(), ids.to_vec());
        }
        let mut rows: Vec<Stored<T>> = Vec::new();
        let mut others = Vec::new();
        for id in ids {
            match self.pending_row(*id).await {
                None => others.push(*id),
                Some(Some(row))
                    if rows.iter().all(|known| known.value.id().uuid() != id.uuid()) =>
                {
                    rows.push(row);
                }
                Some(_) => {}
            }
        }
        (rows, others)
    }

    /// Reports the rows that the call has found. The call may be dropped meanwhile.
    async fn meet_all(&self, rows: &[Stored<T>]) {
        if self.pending.is_some() && rows.len() <= MOST_REPORTED {
            for row in rows {
                self.meet(row.value.id().uuid()).await;
            }
        }
    }

    /// Reports a row that the call reads. The call may be dropped meanwhile.
    async fn meet(&self, id: Uuid) {
        if self.pending.as_ref().is_some_and(|pending| pending.meet(T::TABLE.model, id)) {
            tokio::task::yield_now().await;
        }
    }

    /// Has the pending rows of this table committed, so that the database can answer.
    pub(super) async fn settle_pending(&self) {
        if let Some(settling) =
            self.pending.as_ref().and_then(|pending| pending.settle(T::TABLE.key()))
        {
            settling.await;
        }
    }
}

/// The ids of one shard.
struct Ids<T> {
    source: Source<T>,
    ids: Vec<Uuid>,
}
