//! Actions that committed on some of their shards only.
//!
//! Invariant: the part of the last shard that committed is deleted after the others. So the parts that are
//! left tell whether the action is complete, even after its events are deleted.

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
    /// date. Shards that cannot be reached do not hide the records of the others. Records of complete
    /// actions, which a process or a shard that went away has left, are deleted.
    pub async fn partial_commits(&self) -> Result<Vec<PartialCommit>, DbError> {
        let found = self.shards.look_up_parts(self.shards.all().collect(), None).await?;
        for (action, shards) in found.complete {
            if let Err(error) = forget_parts(self.shards.in_order(&shards), action).await {
                tracing::debug!(%error, %action, "the trail of a complete cross-shard commit was not deleted");
            }
        }
        let mut partial = Vec::new();
        // An action that this process was committing during the look-up may be complete now, so
        // look it up again. The result for a finished action is final.
        for PartialCommit { action, .. } in found.partial {
            if !self.shards.default().is_open(action) {
                let all = self.shards.all().collect();
                partial.extend(self.shards.look_up_parts(all, Some(action)).await?.partial);
            }
        }
        partial.sort_by_key(|found| found.committed_date);
        Ok(partial)
    }

    /// Removes an action from the list of [`Databases::partial_commits`], after the application
    /// completed or reverted it. Its events stay, so the action then counts as committed, also if it was reverted.
    pub async fn resolve_partial_commit(&self, action: ActionId) -> Result<(), DbError> {
        let (parts, unreachable) =
            self.shards.parts(self.shards.all().collect(), Some(action)).await;
        let Some(last) = parts.into_iter().max_by_key(Part::position) else {
            return unreachable.into_iter().next().map_or(Ok(()), |(_, error)| Err(error));
        };
        let mut shards = last.shards;
        shards.retain(|shard| *shard != last.shard);
        shards.push(last.shard);
        forget_parts(self.shards.in_order(&shards), action).await
    }
}

/// The actions whose parts were found.
#[derive(Default)]
struct FoundActions {
    partial: Vec<PartialCommit>,
    /// Those that are complete, with their shards in the order in which they committed.
    complete: Vec<(ActionId, Vec<ShardIdentifier>)>,
}

impl Shards {
    /// The databases of these shards that are configured, in the same order.
    fn in_order(&self, shards: &[ShardIdentifier]) -> Vec<&Arc<Database>> {
        shards.iter().filter_map(|shard| self.databases.get(shard)).collect()
    }

    /// The parts of one action, or of all, and the shards that could not be reached.
    async fn parts(
        &self,
        databases: Vec<&Arc<Database>>,
        action: Option<ActionId>,
    ) -> (Vec<Part>, Vec<(ShardIdentifier, DbError)>) {
        let asked = databases
            .into_iter()
            .map(|database| async move { (database.shard, parts(database, action).await) });
        let (mut found, mut unreachable) = (Vec::new(), Vec::new());
        for (shard, answer) in visit(asked.collect()).await {
            match answer {
                Ok(parts) => found.extend(parts),
                Err(error) => unreachable.push((shard, error)),
            }
        }
        (found, unreachable)
    }

    /// Looks up one action, or all that have parts. Fails only if no shard can be reached.
    async fn look_up_parts(
        &self,
        databases: Vec<&Arc<Database>>,
        action: Option<ActionId>,
    ) -> Result<FoundActions, DbError> {
        let count = databases.len();
        let (parts, mut failures) = self.parts(databases, action).await;
        if failures.len() == count
            && let Some((_, error)) = failures.pop()
        {
            return Err(error);
        }
        let silent: Vec<ShardIdentifier> = failures.into_iter().map(|(shard, _)| shard).collect();
        let mut last_parts: BTreeMap<ActionId, Part> = BTreeMap::new();
        for part in parts {
            let last = last_parts.entry(part.action).or_insert_with(|| part.clone());
            if part.position() > last.position() {
                *last = part;
            }
        }
        let mut found = FoundActions::default();
        for (action, last) in last_parts {
            let shards = last.shards.clone();
            match self.look_for_missing(judge(last, &silent)).await {
                Some(partial) => found.partial.push(partial),
                None => found.complete.push((action, shards)),
            }
        }
        Ok(found)
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
        let found = self.look_up_parts(databases, Some(action)).await?;
        let Some(partial) = found.partial.into_iter().next() else {
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

    /// Parts that were there a moment ago may be deleted by now, because the action is complete. The
    /// outbox tells which shards committed. `None` if all have.
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
        for shards in [&mut found.committed, &mut found.missing, &mut found.unreachable] {
            shards.sort();
        }
        (found.missing.len() + found.unreachable.len() > 0).then_some(found)
    }
}

/// Deletes the parts of an action on these databases, that on the last one after the others. If one of
/// the others fails, the last one stays.
pub(crate) async fn forget_parts(
    mut databases: Vec<&Arc<Database>>,
    action: ActionId,
) -> Result<(), DbError> {
    let Some(last) = databases.pop() else { return Ok(()) };
    let others = databases.into_iter().map(|database| forget(database, action));
    visit(others.collect()).await.into_iter().collect::<Result<(), _>>()?;
    forget(last, action).await
}

/// What the last part says: the shards commit one after another, so those before it have committed, too.
fn judge(last: Part, silent: &[ShardIdentifier]) -> PartialCommit {
    // No part names no shard: its row cannot be parsed then.
    let (committed, absent) = last.shards.split_at(last.position() + 1);
    let (unreachable, missing) = absent.iter().copied().partition(|shard| silent.contains(shard));
    PartialCommit {
        committed: committed.to_vec(),
        missing,
        unreachable,
        action: last.action,
        namespace: last.namespace,
        action_name: last.action_name,
        committed_date: last.committed,
    }
}
