//! Actions that committed on some of their shards and not on others.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::Databases;
use super::shards::{Shards, visit};
use crate::db::{ActionId, DbError, DbErrorKind};
use crate::domain::{ShardIdentifier, list_shards};
use crate::outbox::{Part, forget, is_recorded, parts};

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
        // One that this process worked for while it was looked at may be complete by now; what
        // is said of one that is over holds.
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
        if let Some(error) = failure
            && unreachable.len() == self.all().len()
        {
            return Err(error);
        }
        let mut partial = Vec::new();
        for found in by_action.into_values().filter_map(|parts| judge(parts, &unreachable)) {
            partial.extend(self.look_for_missing(found).await);
        }
        Ok(partial)
    }

    /// What is known to have committed in part of this action; an error if it depends on a
    /// shard that cannot be asked.
    pub(crate) async fn partial_commit(
        &self,
        action: ActionId,
    ) -> Result<Option<PartialCommit>, DbError> {
        let Some(partial) = self.partial_commits(Some(action)).await?.pop() else {
            return Ok(None);
        };
        if partial.missing.is_empty() {
            let silent = list_shards(&partial.unreachable);
            let why = format!(
                "whether action {action} is complete cannot be told: shards {silent} cannot be asked"
            );
            return Err(DbError::new(DbErrorKind::Unavailable, why));
        }
        Ok(Some(partial))
    }

    /// The trail of a complete action is taken away shard by shard, and so may be met half
    /// gone, or left so by a process that died over it. The outbox knows what committed.
    async fn look_for_missing(&self, mut found: PartialCommit) -> Option<PartialCommit> {
        for shard in std::mem::take(&mut found.missing) {
            // A shard that is configured no more has nothing that could be asked.
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
