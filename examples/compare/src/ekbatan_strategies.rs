//! Ekbatan's own strategies as contenders.

use std::sync::atomic::{AtomicU32, Ordering};

use async_trait::async_trait;
use ekbatan::action::{Adaptive, Budget, Coalesced, ErrorKind, Pessimistic, RetryPolicy};
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;

use crate::contender::Contender;
use crate::failure::Failure;
use crate::money::{NAMESPACE, PRINCIPAL};
use crate::processes::WorkerJob;
use crate::strategy::Strategy;
use crate::wallet::{Deposit, DepositMoney, Wallet, WalletError};

/// The most connections of ekbatan's pool. The pool only reads; commits travel on lanes.
const MAX_POOL: u32 = 16;

/// Ekbatan with its defaults, except the pool size and the retry budget: conflicts are
/// retried without a limit, as by the other contenders.
pub struct Ekbatan {
    executor: ActionExecutor,
    names_key: bool,
}

impl Ekbatan {
    pub async fn open(job: &WorkerJob) -> Result<Self, Failure> {
        let config = job.access.ekbatan(job.tasks.min(MAX_POOL) as usize);
        let databases = Databases::connect(&EkbatanConfig::from(config)).await?;
        let patient = [ErrorKind::Stale, ErrorKind::Deadlock, ErrorKind::Serialization]
            .into_iter()
            .fold(RetryPolicy::default(), |policy, kind| policy.with(kind, Budget::new(u32::MAX)));
        let mut builder =
            ActionExecutor::builder(&databases, NAMESPACE).model::<Wallet>().retry(patient);
        if let Some(contention) = contention(job) {
            builder = builder.contention(contention);
        }
        let takes_turns = job.strategy == Strategy::Adaptive && job.several_processes;
        if job.strategy.takes_leases() || takes_turns {
            builder = builder.leases(job.lock.connect(&job.access).await?);
        }
        let names_key = job.strategy != Strategy::Default;
        Ok(Self { executor: builder.build().await?, names_key })
    }
}

fn contention(job: &WorkerJob) -> Option<Contention> {
    let leased = Coalesced::default().under_lease(Pessimistic::default());
    let contention = match job.strategy {
        Strategy::Default => return None,
        Strategy::Pessimistic => Contention::pessimistic(),
        Strategy::Coalesced => Contention::coalesced(),
        Strategy::CoalescedLease => leased.into(),
        Strategy::Adaptive if job.several_processes => Adaptive::default().coalesced(leased).into(),
        Strategy::Adaptive => Contention::adaptive(),
        _ => Contention::Optimistic,
    };
    Some(contention)
}

#[async_trait]
impl Contender for Ekbatan {
    async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<u32, Failure> {
        let action = CountedDeposit { attempts: AtomicU32::new(0), names_key: self.names_key };
        let deposit = Deposit { wallet: Id::from(wallet), amount };
        self.executor.execute(&action, deposit).principal(PRINCIPAL).await?;
        Ok(action.attempts.into_inner())
    }

    async fn close(&self) {
        self.executor.databases().close().await;
    }
}

/// The deposit of the wallet example, with a count of its attempts, and a contention key unless
/// nothing is to be set.
struct CountedDeposit {
    attempts: AtomicU32,
    names_key: bool,
}

impl Action for CountedDeposit {
    const NAME: &'static str = DepositMoney::NAME;
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    fn contention_keys(&self, params: &Deposit) -> Vec<LockKey> {
        self.names_key.then(|| LockKey::of("wallet", params.wallet)).into_iter().collect()
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
