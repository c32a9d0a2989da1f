//! Actions under the locks of every provider: what the locks serialize, and what a lease that ends
//! too early can still commit.
//!
//! The data are on the kind of database that has the locks, and on SQLite for locks of a process,
//! of Redis, etcd, MongoDB or Aerospike, so that every database is covered, too.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::{ErrorKind, RetryPolicy};
use ekbatan::lock::{Lease, LockKey, LockProvider, LossCause, WithLockError};
use ekbatan::prelude::*;
use tokio::sync::Barrier;

use crate::database::TestDatabase;
use crate::providers::{Kind, LONG, TestLocks};
use support::Dialect;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError};

on_providers! {
    |kind| &crate::commit::LockedDatabase::start(kind).await;
    [
        process, redis, etcd, sqlite, postgres_lease, postgres_session,
        mysql_lease, mysql_session, mariadb_lease, mariadb_session; stores
    ]
    deposits_under_a_lock_all_commit_at_the_first_attempt,
    a_lock_within_perform_loses_no_money_and_serializes_no_commit,
    an_expired_lease_commits_nothing,
    a_later_lease_fences_off_the_earlier_one,
    deposits_under_several_locks_all_commit_at_the_first_attempt,
    with_lock_fences_the_commit,
    a_commit_under_several_locks_is_fenced_by_each,
}

/// A database and the locks for it.
pub struct LockedDatabase {
    db: TestDatabase,
    of_test: TestLocks,
}

impl LockedDatabase {
    pub async fn start(kind: Kind) -> Self {
        let dialect = match kind {
            kind if kind.is_store() => Dialect::Sqlite,
            Kind::Process | Kind::Redis | Kind::Etcd | Kind::Sqlite => Dialect::Sqlite,
            Kind::PostgresLease | Kind::PostgresSession => Dialect::Postgres,
            Kind::MySqlLease | Kind::MySqlSession => Dialect::MySql,
            _ => Dialect::MariaDb,
        };
        let of_test = TestLocks::start(kind).await;
        Self { db: TestDatabase::start(dialect).await, of_test }
    }

    pub fn executor(&self) -> ActionExecutor {
        self.db.executor()
    }

    pub fn locks(&self) -> LockProvider {
        self.of_test.locks.clone()
    }

    pub async fn wallet(&self, id: Id<Wallet>) -> Stored<Wallet> {
        self.db.databases.repository::<Wallet>().get(id).await.unwrap()
    }
}

pub async fn wallet(executor: &ActionExecutor) -> Id<Wallet> {
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    executor.execute(&OpenWallet, opening).await.unwrap().id
}

pub fn one(wallet: Id<Wallet>) -> Deposit {
    Deposit { wallet, amount: Decimal::ONE }
}

async fn deposits_under_a_lock_all_commit_at_the_first_attempt(t: &LockedDatabase) {
    let (executor, locks) = (t.executor(), t.locks());
    let wallet = wallet(&executor).await;
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (executor, locks) = (executor.clone(), locks.clone());
        tasks.spawn(async move {
            let call = executor.execute(&DepositMoney, one(wallet)).retry(RetryPolicy::none());
            call.with_lock(&locks, &lock_key!("wallet", wallet), LockOptions::wait(LONG)).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    let wallet = t.wallet(wallet).await;
    assert_eq!((wallet.balance, wallet.version()), (Decimal::TEN, 11));
}

/// Acquires the lock where it does not help: it is released before the commit.
struct LockedWithin {
    locks: LockProvider,
    all_have_performed: Arc<Barrier>,
}

impl Action for LockedWithin {
    const NAME: &'static str = "wallet.locked_within";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        let key = lock_key!("wallet", params.wallet);
        let lease = self.locks.acquire(&key, LONG).await.expect("the lock is free in the end");
        let wallet = ctx.get(params.wallet).await?;
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        lease.release().await;
        // The worst case: all read before one commits.
        self.all_have_performed.wait().await;
        Ok(ctx.plan().update(wallet))
    }
}

async fn a_lock_within_perform_loses_no_money_and_serializes_no_commit(t: &LockedDatabase) {
    let executor = t.executor();
    let wallet = wallet(&executor).await;
    let action =
        Arc::new(LockedWithin { locks: t.locks(), all_have_performed: Arc::new(Barrier::new(10)) });
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..10 {
        let (executor, action) = (executor.clone(), action.clone());
        tasks.spawn(async move {
            executor.execute(&*action, one(wallet)).retry(RetryPolicy::none()).await.map(drop)
        });
    }
    let mut committed = 0;
    while let Some(done) = tasks.join_next().await {
        match done.unwrap() {
            Ok(()) => committed += 1,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Stale, "{error}"),
        }
    }
    assert_eq!(committed, 1);
    let wallet = t.wallet(wallet).await;
    assert_eq!(wallet.balance, Decimal::from(committed));
}

/// Deposits after its lease has ended.
struct TooSlow {
    lease: Lease,
}

impl Action for TooSlow {
    const NAME: &'static str = "wallet.too_slow";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        self.lease.lost().await;
        Ok(ctx.plan().update(wallet))
    }
}

async fn an_expired_lease_commits_nothing(t: &LockedDatabase) {
    let (executor, locks) = (t.executor(), t.locks());
    let wallet = wallet(&executor).await;
    let key = lock_key!("wallet", wallet);
    let hold = Duration::from_millis(700);
    let options = LockOptions::wait(LONG).hold(hold);
    let done = locks.with_lock(&key, options, async |lease: Lease| {
        let slow = TooSlow { lease: lease.clone() };
        let answer = executor.execute(&slow, one(wallet)).fenced_by(&lease).await;
        assert_eq!(lease.lost().await, LossCause::Expired(hold));
        answer
    });
    match done.await {
        Err(WithLockError::Work(ExecuteError::FenceLost { .. })) => {}
        other => panic!("{other:?}"),
    }
    let wallet = t.wallet(wallet).await;
    assert_eq!((wallet.balance, wallet.version()), (Decimal::ZERO, 1));
}

async fn a_later_lease_fences_off_the_earlier_one(t: &LockedDatabase) {
    let (executor, locks) = (t.executor(), t.locks());
    let wallet = wallet(&executor).await;
    let key = lock_key!("wallet", wallet);
    let first = locks.acquire(&key, LONG).await.unwrap();
    let old = first.clone();
    locks.force_release(&key, "the operator said so").await.unwrap();
    let second = locks.acquire(&key, LONG).await.unwrap();
    executor.execute(&DepositMoney, one(wallet)).fenced_by(&second).await.unwrap();
    let late = executor.execute(&DepositMoney, one(wallet)).fenced_by(&old).await;
    assert!(matches!(late, Err(ExecuteError::FenceLost { .. })), "{late:?}");
    let wallet = t.wallet(wallet).await;
    assert_eq!(wallet.balance, Decimal::ONE);
}

async fn deposits_under_several_locks_all_commit_at_the_first_attempt(t: &LockedDatabase) {
    let (executor, locks) = (t.executor(), t.locks());
    let wallets = [wallet(&executor).await, wallet(&executor).await];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..10 {
        let (executor, locks) = (executor.clone(), locks.clone());
        tasks.spawn(async move {
            let mut keys = wallets.map(|wallet| lock_key!("wallet", wallet));
            keys.rotate_left(n % 2);
            let call = executor.execute(&DepositMoney, one(wallets[n % 2]));
            let call = call.retry(RetryPolicy::none());
            call.with_locks(&locks, &keys, LockOptions::wait(LONG)).await
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap().unwrap();
    }
    for wallet in wallets {
        let wallet = t.wallet(wallet).await;
        assert_eq!((wallet.balance, wallet.version()), (Decimal::from(5), 6));
    }
}

/// Deposits while one of its keys is forced free and used by another action.
struct Overtaken {
    locks: LockProvider,
    key: LockKey,
    executor: ActionExecutor,
    other: Id<Wallet>,
}

impl Action for Overtaken {
    const NAME: &'static str = "wallet.overtaken";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        assert!(self.locks.force_release(&self.key, "a test").await.unwrap());
        let (executor, other) = (self.executor.clone(), self.other);
        let (locks, key) = (self.locks.clone(), self.key.clone());
        let successor = tokio::spawn(async move {
            let call = executor.execute(&DepositMoney, one(other));
            call.with_lock(&locks, &key, LockOptions::wait(LONG)).await.map(drop)
        });
        successor.await.expect("the successor does not panic").expect("the successor commits");
        Ok(ctx.plan().update(wallet))
    }
}

async fn with_lock_fences_the_commit(t: &LockedDatabase) {
    let (executor, locks) = (t.executor(), t.locks());
    let (of_call, other) = (wallet(&executor).await, wallet(&executor).await);
    let key = LockKey::named("a");
    let (of_action, keyed) = (locks.clone(), key.clone());
    let action = Overtaken { locks: of_action, key: keyed, executor: executor.clone(), other };
    let call = executor.execute(&action, one(of_call));
    match call.with_lock(&locks, &key, LockOptions::wait(LONG)).await {
        Err(WithLockError::Work(ExecuteError::FenceLost { key: lost, .. })) => {
            assert_eq!(lost, key.stored("test"));
        }
        other => panic!("{other:?}"),
    }
    let balances = (t.wallet(of_call).await.balance, t.wallet(other).await.balance);
    assert_eq!(balances, (Decimal::ZERO, Decimal::ONE));
}

async fn a_commit_under_several_locks_is_fenced_by_each(t: &LockedDatabase) {
    let (executor, locks) = (t.executor(), t.locks());
    let (of_call, other) = (wallet(&executor).await, wallet(&executor).await);
    let keys = ["a", "b", "c"].map(LockKey::named);
    for key in &keys {
        let (locks, key) = (locks.clone(), key.clone());
        let stored = key.stored("test");
        let action = Overtaken { locks: locks.clone(), key, executor: executor.clone(), other };
        let call = executor.execute(&action, one(of_call));
        match call.with_locks(&locks, &keys, LockOptions::wait(LONG)).await {
            Err(WithLockError::Work(ExecuteError::FenceLost { key, .. })) => {
                assert_eq!(key, stored)
            }
            other => panic!("{other:?}"),
        }
    }
    let balance = async |id| t.wallet(id).await.balance;
    assert_eq!((balance(of_call).await, balance(other).await), (Decimal::ZERO, Decimal::from(3)));
}
