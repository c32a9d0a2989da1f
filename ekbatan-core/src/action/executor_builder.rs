//! Builds an executor, after it has checked the tables and the names.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::contention::Strategies;
use super::effect::EffectRunner;
use super::executor_state::ExecutorState;
use super::key_locks::KeyLocks;
use super::{ActionExecutor, BuildError, Contention, KeyScope, Leases, RetryPolicy};
use crate::db::eventlog::{CROSS_SHARD_PARTS, EVENTS, IDEMPOTENCY_DECISIONS, IDEMPOTENCY_KEYS};
use crate::db::{Database, DbError, SchemaError, TableError};
use crate::domain::{
    Entity, Event, EventName, IdGenerator, ShardIdentifier, Table, namespace_problem,
};
use crate::shard::{Databases, KeyHomes, Shards, visit};

/// The deadline of calls. It is longer than the defaults of what a call waits for, so that those
/// end the wait first, with errors that say more: a commit and its settling (60 s and 30 s), and
/// a lease (90 s).
const DEFAULT_DEADLINE: Duration = Duration::from_secs(120);

/// Configures an [`ActionExecutor`].
#[must_use = "call `build`"]
pub struct ActionExecutorBuilder {
    databases: Databases,
    namespace: String,
    retry: RetryPolicy,
    deadline: Duration,
    log_principal: bool,
    record_reads: bool,
    seed: Option<u64>,
    contention: Option<Contention>,
    leases: Option<Arc<dyn Leases>>,
    key_scope: KeyScope,
    key_homes: KeyHomes,
    models: Vec<RegisteredModel>,
}

/// A model that was named to the builder.
struct RegisteredModel {
    table: &'static Table,
    events: &'static [EventName],
    /// The databases that may hold rows of it.
    databases: fn(&Shards) -> Vec<&Arc<Database>>,
}

impl ActionExecutor {
    /// Begins to build an executor.
    ///
    /// ```
    /// # use ekbatan_core::action::{ActionExecutor, BuildError};
    /// # use ekbatan_core::domain::Model;
    /// # use ekbatan_core::shard::Databases;
    /// # async fn build<Wallet: Model>(databases: &Databases) -> Result<ActionExecutor, BuildError> {
    /// ActionExecutor::builder(databases, "com.example.wallet").model::<Wallet>().build().await
    /// # }
    /// ```
    pub fn builder(databases: &Databases, namespace: &str) -> ActionExecutorBuilder {
        ActionExecutorBuilder {
            databases: databases.clone(),
            namespace: namespace.to_owned(),
            retry: RetryPolicy::default(),
            deadline: DEFAULT_DEADLINE,
            log_principal: false,
            record_reads: false,
            seed: None,
            contention: None,
            leases: None,
            key_scope: KeyScope::default(),
            key_homes: KeyHomes::default(),
            models: Vec::new(),
        }
    }
}

impl ActionExecutorBuilder {
    /// Registers a model or entity. [`build`](Self::build) compares its table with the code,
    /// and the names of its events with those of other models.
    pub fn model<T: Entity>(mut self) -> Self {
        let databases = Shards::of_table::<T>;
        self.models.push(RegisteredModel { table: T::TABLE, events: T::Event::NAMES, databases });
        self
    }

    /// Sets which failures are retried, unless a call sets its own policy.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets the maximum time of a call, unless the call sets its own
    /// [`deadline`](super::Execution::deadline). Default 2 minutes; `Duration::MAX` for none.
    pub fn deadline(mut self, after: Duration) -> Self {
        self.deadline = after;
        self
    }

    /// Sets how calls deal with others that want the same key or row, unless the action or the
    /// call says otherwise. If it is not set, calls are [adaptive](Contention::Adaptive), and
    /// take no leases.
    pub fn contention(mut self, contention: impl Into<Contention>) -> Self {
        self.contention = Some(contention.into());
        self
    }

    /// Sets where leases are taken, for the strategies that need them.
    pub fn leases(mut self, leases: impl Leases) -> Self {
        self.leases = Some(Arc::new(leases));
        self
    }

    /// Whether spans show the principal. Off by default: a principal may be personal data.
    pub fn log_principal(mut self, show: bool) -> Self {
        self.log_principal = show;
        self
    }

    /// Whether actions that change nothing leave a row in the outbox. Off by default.
    pub fn record_reads(mut self, record: bool) -> Self {
        self.record_reads = record;
        self
    }

    /// Seeds the random waits between retries, so that a run can be repeated.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets within what an idempotency key is unique. All executors of a namespace must agree.
    pub fn key_scope(mut self, scope: KeyScope) -> Self {
        self.key_scope = scope;
        self
    }

    /// Sets the shards that are homes of idempotency keys and messages, instead of all shards. Every
    /// key has one home, which must be reachable for calls with the key. All executors of a namespace
    /// must agree, so set this before a shard is added.
    pub fn key_homes(mut self, shards: impl IntoIterator<Item = ShardIdentifier>) -> Self {
        self.key_homes.present = Some(shards.into_iter().collect());
        self
    }

    /// Sets the shards that were homes of idempotency keys before. A key whose home was another
    /// one is looked up there, too. No executor may still use them as its homes.
    pub fn former_key_homes(mut self, shards: impl IntoIterator<Item = ShardIdentifier>) -> Self {
        self.key_homes.former = Some(shards.into_iter().collect());
        self
    }

    /// Builds the executor. Fails if a table of a model or of the framework does not match the
    /// code.
    pub async fn build(self) -> Result<ActionExecutor, BuildError> {
        self.check_options()?;
        self.check_event_names()?;
        self.check_tables().await?;
        let ids = IdGenerator::new(self.databases.clock.clone());
        let random = self.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let effects = EffectRunner::default();
        let strategies = Strategies::new(self.contention, self.leases, effects.clone());
        let state = ExecutorState {
            databases: self.databases,
            namespace: self.namespace,
            key_scope: self.key_scope,
            key_homes: self.key_homes,
            retry: self.retry,
            deadline: self.deadline,
            ids,
            key_locks: KeyLocks::default(),
            strategies,
            effects,
            log_principal: self.log_principal,
            record_reads: self.record_reads,
            random: Mutex::new(random),
            fence_refusals: AtomicU64::new(0),
            deliveries: Arc::default(),
        };
        Ok(ActionExecutor { state: Arc::new(state) })
    }

    fn check_options(&self) -> Result<(), BuildError> {
        if let Some(why) = namespace_problem(&self.namespace) {
            return Err(BuildError::Namespace { namespace: self.namespace.clone(), why });
        }
        if self.contention.as_ref().is_some_and(Contention::takes_leases) && self.leases.is_none() {
            return Err(BuildError::NoLeases);
        }
        match self.key_homes.unknown(&self.databases.shards) {
            Some(unknown) => Err(BuildError::KeyHomes(unknown)),
            None => Ok(()),
        }
    }

    /// Fails if two models store events under one name.
    fn check_event_names(&self) -> Result<(), BuildError> {
        let mut names: HashMap<&'static str, &'static Table> = HashMap::new();
        for model in &self.models {
            for event in model.events {
                match names.insert(event.name, model.table) {
                    Some(other) if other.key() != model.table.key() => {
                        return Err(BuildError::EventName {
                            name: event.name,
                            first: other.model,
                            second: model.table.model,
                        });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Compares the tables on every shard with the code.
    async fn check_tables(&self) -> Result<(), BuildError> {
        let shards = &self.databases.shards;
        let tables_on = |database: &Arc<Database>| {
            let of_models = self.models.iter().filter(|model| {
                (model.databases)(shards).iter().any(|other| other.shard == database.shard)
            });
            let own: [&'static Table; 4] =
                [&EVENTS, &IDEMPOTENCY_KEYS, &IDEMPOTENCY_DECISIONS, &CROSS_SHARD_PARTS];
            own.into_iter().chain(of_models.map(|model| model.table)).collect::<Vec<_>>()
        };
        let checks = shards.all().map(|database| check_database(database, tables_on(database)));
        let found: Vec<_> = visit(checks.collect()).await.into_iter().collect::<Result<_, _>>()?;
        let problems: Vec<SchemaError> = found.into_iter().flatten().collect();
        if problems.is_empty() { Ok(()) } else { Err(BuildError::Schema(problems)) }
    }
}

/// The differences between the tables of a database and the code.
async fn check_database(
    database: &Database,
    tables: Vec<&'static Table>,
) -> Result<Vec<SchemaError>, DbError> {
    let mut problems = Vec::new();
    for table in tables {
        match database.insertable_table(table).await {
            Ok(_) => {}
            Err(TableError::Schema(problem)) => problems.push(problem),
            Err(TableError::Database(error)) => return Err(error),
        }
    }
    Ok(problems)
}

impl std::fmt::Debug for ActionExecutorBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ActionExecutorBuilder")
            .field("namespace", &self.namespace)
            .field("databases", &self.databases)
            .finish_non_exhaustive()
    }
}
