//! The executor: runs actions and commits what they stage.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use uuid::Uuid;

use super::contention::{HotKey, Strategies};
use super::gate::Gate;
use super::{Action, BuildError, Contention, Execution, Leases, RetryPolicy};
use crate::db::eventlog::{CROSS_SHARD_PARTS, EVENTS, IDEMPOTENCY_KEYS};
use crate::db::{ActionId, Database, DbError, SchemaError, TableError};
use crate::domain::{Entity, Event, IdGenerator, Table};
use crate::outbox::is_recorded;
use crate::shard::{Databases, Shards, visit};

/// Runs actions: attempt, commit, retry. Cheap to clone.
#[derive(Clone)]
pub struct ActionExecutor {
    pub(super) inner: Arc<Inner>,
}

pub(super) struct Inner {
    pub(super) databases: Databases,
    pub(super) namespace: String,
    pub(super) retry: RetryPolicy,
    pub(super) ids: IdGenerator,
    pub(super) gate: Gate,
    pub(super) strategies: Strategies,
    pub(super) log_principal: bool,
    pub(super) record_reads: bool,
    random: Mutex<fastrand::Rng>,
    effect_failures: AtomicU64,
    fence_refusals: AtomicU64,
}

impl Inner {
    /// Full jitter: anything up to the bound.
    pub(super) fn jitter(&self, bound: Duration) -> Duration {
        let share = self.random.lock().unwrap_or_else(PoisonError::into_inner).f64();
        bound.mul_f64(share)
    }

    pub(super) fn count_effect_failures(&self, failures: u64) {
        self.effect_failures.fetch_add(failures, Ordering::Relaxed);
    }

    pub(super) fn refused_by_fence(&self, key: &str) {
        self.fence_refusals.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(name: "ekbatan.lock.fence_refused", key, "an action was refused: its lease is over");
    }
}

/// What became of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything that it staged is in the database.
    Committed,
    /// What it staged is on some of its shards and not on others; see
    /// [`Databases::partial_commits`].
    PartlyCommitted,
    /// Nothing of it is, and nothing ever will be.
    NotCommitted,
}

impl ActionExecutor {
    /// An executor with every default. Tables are looked at when they are first used;
    /// [`ActionExecutor::builder`] looks at once.
    pub fn new(databases: &Databases, namespace: &str) -> Result<Self, BuildError> {
        Self::builder(databases, namespace).finish()
    }

    /// An executor to be set up: which models it knows, how it retries.
    pub fn builder(databases: &Databases, namespace: &str) -> ActionExecutorBuilder {
        ActionExecutorBuilder {
            databases: databases.clone(),
            namespace: namespace.to_owned(),
            retry: RetryPolicy::default(),
            log_principal: false,
            record_reads: false,
            seed: None,
            strategies: Strategies::default(),
            models: Vec::new(),
        }
    }

    /// A call of an action, which runs when it is awaited:
    ///
    /// ```
    /// # use ekbatan_core::action::{Action, ActionExecutor, ExecuteError};
    /// # async fn run<A: Action>(executor: &ActionExecutor, action: A, params: A::Params) -> Result<A::Output, ExecuteError<A::Error>> {
    /// let output = executor.execute(&action, params).principal("alice").await?;
    /// # Ok(output) }
    /// ```
    pub fn execute<'a, A: Action>(&'a self, action: &'a A, params: A::Params) -> Execution<'a, A> {
        Execution::new(self, action, params)
    }

    /// The keys on which [adaptive](super::Contention::Adaptive) calls meet for the time being,
    /// the hottest first, and how their calls run.
    pub fn hot_keys(&self) -> Vec<HotKey> {
        self.inner.strategies.hot_keys()
    }

    /// Whether an execution committed.
    ///
    /// While a lane of this process still works for it, this waits. For an execution of
    /// another process that is still running, "not committed" is only true of now. A shard
    /// that cannot be asked is an error only if the others leave the answer open.
    pub async fn outcome(&self, action: ActionId) -> Result<Outcome, DbError> {
        let shards = &self.inner.databases.shards;
        // An execution is open on the default shard until it ends, whichever shards it commits
        // on: none of them is asked before that.
        shards.default().settled(action).await;
        let asked = shards.all().map(|database| async move {
            database.settled(action).await;
            is_recorded(database, action).await
        });
        let (mut found, mut failure) = (false, None);
        for answer in visit(asked.collect()).await {
            match answer {
                Ok(recorded) => found |= recorded,
                Err(error) => failure = Some(error),
            }
        }
        match (found, failure) {
            (false, Some(error)) => return Err(error),
            (false, None) => return Ok(Outcome::NotCommitted),
            (true, _) if shards.is_single() => return Ok(Outcome::Committed),
            (true, _) => {}
        }
        match shards.partial_commit(action).await? {
            None => Ok(Outcome::Committed),
            Some(_) => Ok(Outcome::PartlyCommitted),
        }
    }

    /// The databases.
    pub fn databases(&self) -> &Databases {
        &self.inner.databases
    }

    /// How many effects have failed after their commit, since the executor was built.
    pub fn effect_failures(&self) -> u64 {
        self.inner.effect_failures.load(Ordering::Relaxed)
    }

    /// How many calls were refused because the lease that fenced them was over, since this
    /// executor was built.
    pub fn fence_refusals(&self) -> u64 {
        self.inner.fence_refusals.load(Ordering::Relaxed)
    }

    pub(super) fn new_uuid(&self) -> Uuid {
        self.inner.ids.next_uuid()
    }
}

/// What of the tables on a database is not as the code believes.
async fn look_at(
    database: &Database,
    tables: Vec<&'static Table>,
) -> Result<Vec<SchemaError>, DbError> {
    let mut problems = Vec::new();
    for table in tables {
        match database.table(table).await {
            Ok(_) => {}
            Err(TableError::Schema(problem)) => problems.push(problem),
            Err(TableError::Database(error)) => return Err(error),
        }
    }
    Ok(problems)
}

/// Sets up an [`ActionExecutor`].
#[must_use = "call `build`"]
pub struct ActionExecutorBuilder {
    databases: Databases,
    namespace: String,
    retry: RetryPolicy,
    log_principal: bool,
    record_reads: bool,
    seed: Option<u64>,
    strategies: Strategies,
    models: Vec<Known>,
}

/// A model that was named to the builder.
struct Known {
    table: &'static Table,
    events: &'static [crate::domain::EventName],
    /// Those that may hold rows of it.
    databases: fn(&Shards) -> Vec<&Arc<Database>>,
}

impl ActionExecutorBuilder {
    /// Names a model or entity: its table is held against the code when the executor is
    /// built, and the names of its events against those of the others.
    pub fn model<T: Entity>(mut self) -> Self {
        let databases = Shards::of_table::<T>;
        self.models.push(Known { table: T::TABLE, events: T::Event::NAMES, databases });
        self
    }

    /// Which failures are tried again, unless a call says otherwise.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// How calls deal with others that want the same key, unless the action or the call says
    /// otherwise. Calls without a [key](Action::contention_key) run optimistically.
    pub fn contention(mut self, contention: impl Into<Contention>) -> Self {
        self.strategies.default = contention.into();
        self
    }

    /// Where leases are taken, for the strategies that need them.
    pub fn leases(mut self, leases: impl Leases) -> Self {
        self.strategies.leases = Some(Arc::new(leases));
        self
    }

    /// Shows who asks in the spans. Off by default: a principal may be personal data.
    pub fn log_principal(mut self, show: bool) -> Self {
        self.log_principal = show;
        self
    }

    /// Leaves a row in the outbox also for actions that change nothing. Off by default.
    pub fn record_reads(mut self, record: bool) -> Self {
        self.record_reads = record;
        self
    }

    /// Seeds what is random, so that a run's waits can be repeated.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// The executor, after its tables and the framework's were held against the code.
    pub async fn build(self) -> Result<ActionExecutor, BuildError> {
        let shards = &self.databases.shards;
        let tables_on = |database: &Arc<Database>| {
            let of_models = self.models.iter().filter(|known| {
                (known.databases)(shards).iter().any(|other| other.shard == database.shard)
            });
            let own: [&'static Table; 3] = [&EVENTS, &IDEMPOTENCY_KEYS, &CROSS_SHARD_PARTS];
            own.into_iter().chain(of_models.map(|known| known.table)).collect::<Vec<_>>()
        };
        let looking = shards.all().map(|database| look_at(database, tables_on(database)));
        let looked: Vec<_> =
            visit(looking.collect()).await.into_iter().collect::<Result<_, _>>()?;
        let problems: Vec<SchemaError> = looked.into_iter().flatten().collect();
        if !problems.is_empty() {
            return Err(BuildError::Schema(problems));
        }
        self.finish()
    }

    fn finish(self) -> Result<ActionExecutor, BuildError> {
        if !is_dotted_identifier(&self.namespace) {
            return Err(BuildError::Namespace(self.namespace));
        }
        if self.strategies.default.takes_leases() && self.strategies.leases.is_none() {
            return Err(BuildError::NoLeases);
        }
        let mut names: HashMap<&'static str, &'static Table> = HashMap::new();
        for known in &self.models {
            for event in known.events {
                match names.insert(event.name, known.table) {
                    Some(other) if other.key() != known.table.key() => {
                        return Err(BuildError::EventName {
                            name: event.name,
                            first: other.model,
                            second: known.table.model,
                        });
                    }
                    _ => {}
                }
            }
        }
        let ids = IdGenerator::new(self.databases.clock.clone());
        let random = self.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        Ok(ActionExecutor {
            inner: Arc::new(Inner {
                databases: self.databases,
                namespace: self.namespace,
                retry: self.retry,
                ids,
                gate: Gate::default(),
                strategies: self.strategies,
                log_principal: self.log_principal,
                record_reads: self.record_reads,
                random: Mutex::new(random),
                effect_failures: AtomicU64::new(0),
                fence_refusals: AtomicU64::new(0),
            }),
        })
    }
}

fn is_dotted_identifier(namespace: &str) -> bool {
    namespace.split('.').all(|part| {
        let mut characters = part.chars();
        characters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == '_')
            && characters.all(|character| character.is_ascii_alphanumeric() || character == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::is_dotted_identifier;

    #[test]
    fn namespaces_are_dotted_identifiers() {
        for good in ["a", "com.example.wallet", "_x.y_1", "default"] {
            assert!(is_dotted_identifier(good), "{good}");
        }
        for bad in
            ["", " ", "my-service", "a..b", ".a", "a.", "1a", "com.example wallet", "com.example!"]
        {
            assert!(!is_dotted_identifier(bad), "{bad}");
        }
    }
}
