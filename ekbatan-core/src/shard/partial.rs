//! Actions that committed on some of their shards and not on others.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::shards::{Shards, visit};
use super::{Databases, ShardIdentifier};
use crate::db::{ActionId, DbError};
use crate::outbox::{Part, forget, parts};

/// An action that committed on some of its shards only. What is missing will not come by
/// itself: shards commit one by one, and nothing is tried again once one has.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PartialCommit {
    /// The execution.
    pub action: ActionId,
    /// The namespace of the executor that ran it.
    pub namespace: String,
    /// The action's name.
    pub action_name: String,
    /// The shards that have their part.
    pub committed: Vec<ShardIdentifier>,
    /// The shards that have not.
    pub missing: Vec<ShardIdentifier>,
    /// The shards that could not be asked.
    pub unreachable: Vec<ShardIdentifier>,
    /// When the last part committed.
    pub committed_date: DateTime<Utc>,
}

impl Databases {
    /// Every action that committed on some of its shards only, oldest first. Their parameters
    /// and events stand in the outbox of the shards that committed, under the action's id.
    ///
    /// An action that another process is committing in this moment may be among them; its
    /// date tells. A shard that cannot be asked does not hide what the others know.
    pub async fn partial_commits(&self) -> Result<Vec<PartialCommit>, DbError> {
        let mut partial = self.shards.partial_commits(None).await?;
        // What is complete is taken away shard by shard, so that a single look may meet it
        // half gone.
        for found in std::mem::take(&mut partial) {
            if !self.shards.default().is_open(found.action) {
                partial.extend(self.shards.partial_commits(Some(found.action)).await?);
            }
        }
        partial.sort_by_key(|found| found.committed_date);
        Ok(partial)
    }

    /// Strikes an action off the list of [`Databases::partial_commits`], once what was missing
    /// was made good or what had committed was taken back. Its events stay.
    pub async fn resolve_partial_commit(&self, action: ActionId) -> Result<(), DbError> {
        self.shards.forget_parts(action).await
    }
}

impl Shards {
    /// What is known to have committed in part: of one action, or of all. Fails only if no
    /// shard answers.
    pub(crate) async fn partial_commits(
        &self,
        action: Option<ActionId>,
    ) -> Result<Vec<PartialCommit>, DbError> {
        let asked = self
            .all()
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
        match failure {
            Some(error) if unreachable.len() == self.all().len() => Err(error),
            _ => {
                Ok(by_action.into_values().filter_map(|parts| judge(parts, &unreachable)).collect())
            }
        }
    }

    pub(crate) async fn forget_parts(&self, action: ActionId) -> Result<(), DbError> {
        let asked = self.all().map(|database| forget(database, action));
        visit(asked.collect()).await.into_iter().collect()
    }
}

/// None if every part is there.
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
