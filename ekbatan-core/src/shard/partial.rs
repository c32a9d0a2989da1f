//! Actions that committed on some of their shards only.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::Databases;
use super::shards::{Shards, visit};
use crate::db::{ActionId, Database, DbError, DbErrorKind};
use crate::domain::{ShardIdentifier, list_shards};
use crate::outbox::{Part, forget, is_recorded, parts};

/// An action that committed on some of its shards only. The framework does not complete it: shards
/// commit one by one, and there is no retry after the first commit.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartialCommit {
    /// The execution.
    pub action: ActionId,
    /// The namespace of the executor that ran it.
    pub namespace: String,
    /// The action's name.
    pub action_name: String,
    /// The shards that committed.
    pub committed: Vec<ShardIdentifier>,
    /// The shards that did not commit.
    pub missing: Vec<ShardIdentifier>,
    /// The shards that could not be reached.
    pub unreachable: Vec<ShardIdentifier>,
    /// When the last part committed.
    pub committed_date: DateTime<Utc>,
}

impl Databases {
    /// Every action that committed on some of its shards only, oldest first. The outbox of
    /// the shards that committed has their parameters and events, under the action's id.
    ///
    /// The list may contain an action that another process is committing right now; compare its
    /// date. Shards that cannot be reached do not hide the records of the others.
    pub async fn partial_commits(&self) -> Result<Vec<PartialCommit>, DbError> {
        let mut partial = self.shards.partial_commits(None).await?;
        // An action that this process was committing during the look-up may be complete now, so
        // look it up again. The result for a finished action is final.
        for found in std::mem::take(&mut partial) {
            if !self.shards.default().is_open(found.action) {
                partial.extend(self.shards.partial_commits(Some(found.action)).await?);
            }
        }
        partial.sort_by_key(|found| found.committed_date);
        Ok(partial)
    }

    /// Removes an action from the list of [`Databases::partial_commits`], after the application
    /// completed or reverted it. Its events stay.
    pub async fn resolve_partial_commit(&self, action: ActionId) -> Result<(), DbError> {
        let all: Vec<_> = self.shards.all().collect();
        forget_parts(all, action).await
    }
}

impl Shards {
    /// The partial commits of one action, or of all. Fails only if no shard can be reached.
    pub(crate) async fn partial_commits(
        &self,
        action: Option<ActionId>,
    ) -> Result<Vec<PartialCommit>, DbError> {
        self.partial_commits_on(self.all().collect(), action).await
    }

    async fn partial_commits_on(
        &self,
        databases: Vec<&Arc<Database>>,
        action: Option<ActionId>,
    ) -> Result<Vec<PartialCommit>, DbError> {
        let count = databases.len();
        let asked = databases
            .into_iter()
            .map(|database| async move { (database.shard, parts(database, action).await) });
        let answers = visit(asked.collect()).await;
        let mut unreachable = Vec::new();
        let mut by_action: BTreeMap<ActionId, Vec<Part>> = BTreeMap::new();
        let mut failure = None;
        for (shard, answer) in answers {
            match answer {
                Ok(parts) => {
                    parts
                        .into_iter()
                        .for_each(|part| by_action.entry(part.action).or_default().push(part));
                }
                Err(error) => {
                    unreachable.push(shard);
                    failure = Some(error);
                }
            }
        }
        if let Some(error) = failure
            && unreachable.len() == count
        {
            return Err(error);
        }
        let mut partial = Vec::new();
        for found in by_action.into_values().filter_map(|parts| judge(parts, &unreachable)) {
            partial.extend(self.look_for_missing(found).await);
        }
        Ok(partial)
    }

    /// The partial commit of this action, if it is one. An error if that depends on a shard that
    /// cannot be reached.
    pub(crate) async fn partial_commit(
        &self,
        action: ActionId,
    ) -> Result<Option<PartialCommit>, DbError> {
        self.partial_commit_on(self.all().collect(), action).await
    }

    /// The same for an action whose shards are known.
    pub(crate) async fn partial_commit_among(
        &self,
        shards: &[ShardIdentifier],
        action: ActionId,
    ) -> Result<Option<PartialCommit>, DbError> {
        let known = shards.iter().filter_map(|shard| self.databases.get(shard));
        self.partial_commit_on(known.collect(), action).await
    }

    async fn partial_commit_on(
        &self,
        databases: Vec<&Arc<Database>>,
        action: ActionId,
    ) -> Result<Option<PartialCommit>, DbError> {
        let Some(partial) = self.partial_commits_on(databases, Some(action)).await?.pop() else {
            return Ok(None);
        };
        if partial.missing.is_empty() {
            let silent = list_shards(&partial.unreachable);
            let why = format!(
                "it is unknown whether action {action} is complete: shards {silent} cannot be reached"
            );
            return Err(DbError::new(DbErrorKind::Unavailable, why));
        }
        Ok(Some(partial))
    }

    /// The records of a complete action are removed shard by shard, so some may be gone already, and
    /// a crashed process may leave the others. The outbox tells which shards committed.
    async fn look_for_missing(&self, mut found: PartialCommit) -> Option<PartialCommit> {
        for shard in std::mem::take(&mut found.missing) {
            // The shard may no longer be configured.
            match self.databases.get(&shard) {
                Some(database) => match is_recorded(database, found.action).await {
                    Ok(true) => found.committed.push(shard),
                    Ok(false) => found.missing.push(shard),
                    Err(_) => found.unreachable.push(shard),
                },
                None => found.unreachable.push(shard),
            }
        }
        found.committed.sort();
        found.unreachable.sort();
        (found.missing.len() + found.unreachable.len() > 0).then_some(found)
    }
}

/// Deletes the parts of an action on these databases.
pub(crate) async fn forget_parts(
    databases: Vec<&Arc<Database>>,
    action: ActionId,
) -> Result<(), DbError> {
    let asked = databases.into_iter().map(|database| forget(database, action));
    visit(asked.collect()).await.into_iter().collect()
}

/// `None` if every shard committed.
fn judge(parts: Vec<Part>, silent: &[ShardIdentifier]) -> Option<PartialCommit> {
    let last = parts.iter().max_by_key(|part| part.committed)?.clone();
    let mut committed: Vec<ShardIdentifier> = parts.iter().map(|part| part.shard).collect();
    committed.sort();
    let absent = last.shards.iter().copied().filter(|shard| !committed.contains(shard));
    let (unreachable, missing): (Vec<_>, Vec<_>) = absent.partition(|shard| silent.contains(shard));
    if unreachable.is_empty() && missing.is_empty() {
        return None;
    }
    Some(PartialCommit {
        action: last.action,
        namespace: last.namespace,
        action_name: last.action_name,
        committed,
        missing,
        unreachable,
        committed_date: last.committed,
    })
}
