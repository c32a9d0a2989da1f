//! A key and its home: the shard that has the row of the idempotency key or of the message.
//!
//! The home follows from the key. The row is there and nowhere else, so its primary key decides
//! between calls of all processes and to all shards. A call that writes to the home commits the
//! row with its other rows there, on the home first. Any other call claims the key:
//!
//! 1. After the action has run, the row is inserted at the home as a claim, which names the shards
//!    of the plan. If there is a row already, another call has the key.
//! 2. The shards commit. The batch of the first one inserts the decision on the claim.
//! 3. The caller gets its answer. Then the claim becomes an ordinary row of a key, and the
//!    decision is deleted.
//!
//! A call that finds a claim asks its first shard for the decision. If there is none for a while,
//! it inserts the decision "not committed". If that succeeds, the claim can never commit, and it is
//! deleted. So a process may die after each step.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::shards::Shards;
use crate::clock::Clock;
use crate::db::{ActionId, Database, DbError, DbErrorKind, Staged};
use crate::domain::ShardIdentifier;
use crate::outbox::{
    CallKey, StoredCall, decided, decision, delete_claim, delete_decision, insert, look_up,
    mark_complete,
};

/// How long another call may take between its claim and its commit before it is stopped.
const PATIENCE: Duration = Duration::from_secs(3);

const HOLDER: &str = "keys of calls";

/// The shards that are homes of keys.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyHomes {
    /// `None` stands for all shards.
    pub(crate) present: Option<Vec<ShardIdentifier>>,
    /// Those that were homes before, if keys from then still count.
    pub(crate) former: Option<Vec<ShardIdentifier>>,
}

/// The key of a call.
pub(crate) struct HomedKey {
    key: CallKey,
    /// The home, and the home of former times if it is another one.
    homes: Vec<Arc<Database>>,
    shards: Arc<Shards>,
    clock: Arc<dyn Clock>,
    claim: Option<Claim>,
}

/// The claim of this call, or of another one.
#[derive(Clone)]
struct Claim {
    id: Uuid,
    /// The first shard to commit, which decides.
    first: Arc<Database>,
}

/// A call that has used the key.
pub(crate) struct FoundCall {
    pub(crate) call: StoredCall,
    home: Arc<Database>,
    decided: Option<Claim>,
}

impl KeyHomes {
    /// One shard, which is the home of every key.
    pub(crate) fn only(shard: ShardIdentifier) -> Self {
        Self { present: Some(vec![shard]), former: None }
    }

    /// The home of a key.
    pub(crate) fn home(&self, shards: &Shards, key: &CallKey) -> Arc<Database> {
        self.homes(shards, key).swap_remove(0)
    }

    /// The listed shards that are not configured, if the lists cannot be used.
    pub(crate) fn unknown(&self, shards: &Shards) -> Option<Vec<ShardIdentifier>> {
        let lists = || [&self.present, &self.former].into_iter().flatten();
        let unknown = |shard: &&ShardIdentifier| !shards.databases.contains_key(shard);
        let found: Vec<_> = lists().flatten().filter(unknown).copied().collect();
        (!found.is_empty() || lists().any(Vec::is_empty)).then_some(found)
    }

    fn homes(&self, shards: &Shards, key: &CallKey) -> Vec<Arc<Database>> {
        let known = |shard: ShardIdentifier| shards.databases.get(&shard).cloned();
        let among = |list: &[ShardIdentifier]| key.home(list.iter().copied()).and_then(known);
        let all = || key.home(shards.databases.keys().copied()).and_then(known);
        let home = self.present.as_deref().map_or_else(all, among);
        // Not reached: there is a shard, and the builder checks that it knows the others.
        let home = home.unwrap_or_else(|| shards.default().clone());
        let former = self.former.as_deref().and_then(among);
        let former = former.filter(|former| former.shard != home.shard);
        [Some(home), former].into_iter().flatten().collect()
    }
}

impl HomedKey {
    pub(crate) fn new(
        key: CallKey,
        homes: &KeyHomes,
        shards: &Arc<Shards>,
        clock: &Arc<dyn Clock>,
    ) -> Self {
        let homes = homes.homes(shards, &key);
        Self { key, homes, shards: shards.clone(), clock: clock.clone(), claim: None }
    }

    pub(crate) fn key(&self) -> &CallKey {
        &self.key
    }

    pub(crate) fn home(&self) -> &Arc<Database> {
        &self.homes[0]
    }

    /// The earlier call that has committed with the key. Waits for a call that has claimed it,
    /// and stops that call if it takes too long.
    pub(crate) async fn find(&self) -> Result<Option<FoundCall>, DbError> {
        for home in &self.homes {
            let found = self.find_at(home).await?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    async fn find_at(&self, home: &Arc<Database>) -> Result<Option<FoundCall>, DbError> {
        let at_home = |error: DbError| error.at(home_of(&self.key, home));
        let mut pause = Duration::from_millis(2);
        let mut seen: Option<(Uuid, Instant)> = None;
        loop {
            let found = look_up(home, &self.key, HOLDER).await.map_err(at_home)?;
            let Some(call) = found else { return Ok(None) };
            let Some(id) = call.claim else {
                return Ok(Some(FoundCall { call, home: home.clone(), decided: None }));
            };
            if self.claim.as_ref().is_some_and(|own| own.id == id) {
                return Ok(None);
            }
            let first = self.first_of(&call)?;
            let at_first = |error: DbError| error.at(decides(&self.key, &first, home));
            match decided(&first, id).await.map_err(at_first)? {
                Some(true) => {
                    let decided = Some(Claim { id, first });
                    return Ok(Some(FoundCall { call, home: home.clone(), decided }));
                }
                Some(false) => delete_claim(home, &self.key, id).await.map_err(at_home)?,
                None => {
                    let since = match seen {
                        Some((claim, since)) if claim == id => since,
                        _ => seen.insert((id, Instant::now())).1,
                    };
                    if since.elapsed() < PATIENCE {
                        tokio::time::sleep(pause).await;
                        pause = (pause * 2).min(Duration::from_millis(50));
                    } else {
                        // Either this decision commits or that of the claim. The next round
                        // tells which.
                        let row = decision(id, false, self.clock.now());
                        insert(&first, id, row).await.map_err(at_first)?;
                    }
                }
            }
        }
    }

    fn first_of(&self, call: &StoredCall) -> Result<Arc<Database>, DbError> {
        let first = call.shards.first().and_then(|shard| self.shards.databases.get(shard));
        first.cloned().ok_or_else(|| {
            let shards = crate::domain::list_shards(&call.shards);
            let why = format!(
                "the {} was claimed for the shards {shards}; the first of them is not configured",
                self.key.noun()
            );
            DbError::new(DbErrorKind::Other, why)
        })
    }

    /// Claims the key for a plan whose `first` shard decides. Fails if another call has it.
    pub(crate) async fn claim(
        &mut self,
        id: Uuid,
        row: Staged,
        first: Arc<Database>,
    ) -> Result<(), DbError> {
        // Before the row is sent: this future may be dropped while it is on its way.
        self.claim = Some(Claim { id, first });
        let home = self.home();
        let at_home = |error: DbError| error.at(home_of(&self.key, home));
        if insert(home, id, row).await.map_err(at_home)? {
            return Ok(());
        }
        // It may be our own row, sent twice because the connection broke.
        let found = look_up(home, &self.key, HOLDER).await.map_err(at_home)?;
        if found.and_then(|call| call.claim) == Some(id) {
            return Ok(());
        }
        self.claim = None;
        let why = format!("another call has claimed the {}", self.key.noun());
        Err(DbError::new(DbErrorKind::Serialization, why))
    }

    /// Whether another call has stopped this one.
    pub(crate) async fn is_stopped(&self) -> Result<bool, DbError> {
        match &self.claim {
            Some(own) => Ok(decided(&own.first, own.id).await? == Some(false)),
            None => Ok(false),
        }
    }

    /// Deletes the claim of an attempt that did not commit.
    pub(crate) async fn release(&mut self) -> Result<(), DbError> {
        if let Some(own) = &self.claim {
            delete_claim(self.home(), &self.key, own.id).await?;
            self.claim = None;
        }
        Ok(())
    }

    /// Deletes the claim of a call that failed, without waiting for it. A claim that stays, costs
    /// the next call with the key some time.
    pub(crate) fn release_soon(mut self) {
        if self.claim.is_some() {
            tokio::spawn(async move {
                if let Err(error) = self.release().await {
                    tracing::debug!(%error, "the claim of a key was not deleted");
                }
            });
        }
    }

    /// Records that this call has committed on all of its shards.
    pub(crate) fn complete_soon(self, action: ActionId) {
        let home = self.homes[0].clone();
        complete_soon(home, self.key, action, self.claim);
    }

    /// Records that a call that was found has committed on all of its shards.
    pub(crate) fn complete_found(&self, found: &FoundCall) {
        let (home, key) = (found.home.clone(), self.key.clone());
        complete_soon(home, key, found.call.action, found.decided.clone());
    }
}

/// Does not wait for it. Until it is done, a repeated call asks the shards of the call.
fn complete_soon(home: Arc<Database>, key: CallKey, action: ActionId, claim: Option<Claim>) {
    tokio::spawn(async move {
        let completing = async {
            mark_complete(&home, &key, action).await?;
            match claim {
                Some(claim) => delete_decision(&claim.first, claim.id).await,
                None => Ok(()),
            }
        };
        if let Err(error) = completing.await {
            tracing::debug!(%error, %action, "a key was not marked as complete");
        }
    });
}

fn home_of(key: &CallKey, home: &Database) -> String {
    format!("shard {}, the home of the {}", home.shard, key.noun())
}

fn decides(key: &CallKey, first: &Database, home: &Database) -> String {
    let (first, home) = (first.shard, home.shard);
    format!("shard {first}, which decides the claim of the {} on shard {home}", key.noun())
}
