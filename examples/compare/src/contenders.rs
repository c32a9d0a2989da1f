//! Whoever makes deposits, by one strategy: the framework here, the others in `peers`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use ekbatan::action::Budget;
use ekbatan::lock::{PostgresLocks, ProcessBackend};
use ekbatan::prelude::*;
use ekbatan_lock_redis::RedisBackend;
use sqlx::ConnectOptions;

use crate::Failure;
use crate::access::Access;
use crate::arguments::Lock;
use crate::money::{NAMESPACE, PRINCIPAL};
use crate::peers;
use crate::processes::Job;
use crate::strategy::{Family, Strategy};
use crate::wallet::{Deposit, DepositMoney, Wallet, WalletError};

/// The most connections that the framework's pool gets, to read with. It commits on its lanes.
const MAX_POOL: u32 = 16;
/// The most connections of the pool of locks.
const LOCK_CONNECTIONS: usize = 4;

/// Makes deposits.
#[async_trait]
pub trait Contender: Send + Sync {
    /// One deposit, repeated until it goes through. Answers how often it was tried.
    async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<u32, Failure>;

    /// Gives up the connections.
    async fn close(&self);
}

/// Whoever the job asks for, connected.
pub async fn open(job: &Job) -> Result<Arc<dyn Contender>, Failure> {
    match job.strategy.family() {
        Family::Ekbatan => Ok(Arc::new(Ekbatan::open(job).await?)),
        Family::Peer => peers::open(job).await,
    }
}

/// The framework, with every default but the size of the pool and the patience: deposits
/// that conflict are repeated until they go through, as everybody else's are.
struct Ekbatan {
    executor: ActionExecutor,
}

impl Ekbatan {
    async fn open(job: &Job) -> Result<Self, Failure> {
        let config = job.access.ekbatan(job.tasks.min(MAX_POOL) as usize);
        let databases = Databases::connect(&EkbatanConfig::from(config)).await?;
        let patient = [ErrorKind::Stale, ErrorKind::Deadlock, ErrorKind::Serialization]
            .into_iter()
            .fold(RetryPolicy::default(), |policy, kind| policy.with(kind, Budget::new(u32::MAX)));
        let mut builder = ActionExecutor::builder(&databases, NAMESPACE)
            .model::<Wallet>()
            .retry(patient)
            .contention(contention(job));
        let takes_turns = job.strategy == Strategy::Adaptive && job.several_processes;
        if job.strategy.takes_leases() || takes_turns {
            builder = builder.leases(locks(&job.lock, &job.access).await?);
        }
        Ok(Self { executor: builder.build().await? })
    }
}

fn contention(job: &Job) -> Contention {
    let leased = Coalesced::default().under_lease(Pessimistic::default());
    match job.strategy {
        Strategy::Pessimistic => Contention::pessimistic(),
        Strategy::Coalesced => Contention::coalesced(),
        Strategy::CoalescedLease => leased.into(),
        Strategy::Adaptive if job.several_processes => Adaptive::default().coalesced(leased).into(),
        Strategy::Adaptive => Contention::adaptive(),
        _ => Contention::Optimistic,
    }
}

async fn locks(lock: &Lock, access: &Access) -> Result<LockProvider, Failure> {
    let zone = "compare";
    Ok(match lock {
        Lock::Process => LockProvider::new(ProcessBackend::new(), zone),
        Lock::Postgres => LockProvider::new(postgres(access).await?.session().await?, zone),
        Lock::PostgresLease => LockProvider::new(postgres(access).await?.leases().await?, zone),
        Lock::RedisAt(url) => {
            LockProvider::new(RedisBackend::connect(url, RedisBackend::NAMESPACE).await?, zone)
        }
        Lock::Redis => return Err("the server of the locks was not started".into()),
    })
}

/// The locks of the same database. Their driver is another one and takes a url alone, so
/// user and password go into it, and options of ours do not.
async fn postgres(access: &Access) -> Result<PostgresLocks, Failure> {
    let mut url = access.postgres()?.to_url_lossy();
    url.set_query(None);
    Ok(PostgresLocks::connect(url.as_str(), LOCK_CONNECTIONS).await?)
}

#[async_trait]
impl Contender for Ekbatan {
    async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<u32, Failure> {
        let action = CountedDeposit::default();
        let deposit = Deposit { wallet: Id::from(wallet), amount };
        self.executor.execute(&action, deposit).principal(PRINCIPAL).await?;
        Ok(action.attempts.into_inner())
    }

    async fn close(&self) {
        self.executor.databases().close().await;
    }
}

/// The deposit of the wallet example, which says what it contends for and counts how often
/// it was performed.
#[derive(Default)]
struct CountedDeposit {
    attempts: AtomicU32,
}

impl Action for CountedDeposit {
    const NAME: &'static str = DepositMoney::NAME;
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    fn contention_key(&self, params: &Deposit) -> Option<ContentionKey> {
        Some(ContentionKey::new("wallet", params.wallet))
    }

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        self.attempts.fetch_add(1, Ordering::Relaxed);
        DepositMoney.perform(ctx, params).await
    }
}
