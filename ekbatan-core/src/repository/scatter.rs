//! Queries on many shards.

use std::marker::PhantomData;

use super::source::Source;
use super::{ReadError, Repository, ShardFailure};
use crate::db::Transaction;
use crate::domain::{Entity, EntityId, ShardIdentifier, Stored};
use crate::shard::{ShardError, visit};

/// The rows of the shards that could be read, and the shards that failed.
#[derive(Debug)]
#[non_exhaustive]
pub struct Reachable<T> {
    /// The rows of the shards that could be read.
    pub rows: Vec<Stored<T>>,
    /// The shards that failed, with their errors.
    pub unreachable: Vec<ShardFailure>,
}

impl<T: Entity> Repository<T> {
    /// The sources of a read by condition.
    pub(super) fn sources(&self) -> Vec<Source<T>> {
        match &self.within {
            Some(transaction) => vec![self.source(transaction.database())],
            None => {
                self.shards.of_table::<T>().into_iter().map(|shard| self.source(shard)).collect()
            }
        }
    }

    /// The source of a read by id; `None` if a lookup has no such row.
    pub(super) async fn source_of(&self, id: T::Id) -> Result<Option<Source<T>>, ReadError> {
        let found = self.shards.of_id::<T>(id).await;
        let Some(open_on) = self.within.as_ref().map(Transaction::database) else {
            return Ok(found?.map(|shard| self.source(shard)));
        };
        match found {
            // "Not found" would be an answer about the wrong shard.
            Ok(Some(shard)) if shard.shard != open_on.shard => Err(ReadError::OtherShard {
                model: T::TABLE.model,
                id: id.uuid(),
                row: shard.shard,
                transaction: open_on.shard,
            }),
            // If the id does not determine the shard, the transaction does.
            Ok(Some(_)) | Err(ShardError::NotById { .. }) => Ok(Some(self.source(open_on))),
            Ok(None) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn source(&self, database: &std::sync::Arc<crate::db::Database>) -> Source<T> {
        Source {
            database: database.clone(),
            within: self.within.clone(),
            fencing: self.fencing.clone(),
            route: self.route,
            after: self.after.clone(),
            holder: self.holder,
            of: PhantomData,
        }
    }
}

/// The results of all sources, in the order of the shards. If one of several fails, the error lists
/// which shards succeeded and which failed.
pub(super) async fn all<R, F>(asked: Vec<F>) -> Result<Vec<R>, ReadError>
where
    F: Future<Output = (ShardIdentifier, Result<R, ReadError>)>,
{
    all_beside(asked, Vec::new()).await
}

/// Like [`all`], for a read that has the answers of some shards already.
pub(super) async fn all_beside<R, F>(
    asked: Vec<F>,
    mut answered: Vec<ShardIdentifier>,
) -> Result<Vec<R>, ReadError>
where
    F: Future<Output = (ShardIdentifier, Result<R, ReadError>)>,
{
    let several = asked.len() + answered.len() > 1;
    let mut done = Vec::with_capacity(asked.len());
    let mut failed = Vec::new();
    for (shard, answer) in visit(asked).await {
        match answer {
            Ok(answer) => {
                answered.push(shard);
                done.push(answer);
            }
            // An error of the query itself is the same on every shard.
            Err(error) if !several || !error.is_of_one_database() => return Err(error),
            Err(error) => failed.push(ShardFailure { shard, error }),
        }
    }
    if failed.is_empty() {
        return Ok(done);
    }
    answered.sort();
    Err(ReadError::Shards { failed, answered })
}

/// Queries every source and pairs the result with its shard.
macro_rules! ask {
    ($sources:expr, |$source:ident| $answer:expr) => {
        $sources
            .into_iter()
            .map(|$source| async move {
                let answer = $answer;
                ($source.shard(), answer)
            })
            .collect::<Vec<_>>()
    };
}

pub(super) use ask;
