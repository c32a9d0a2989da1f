//! The round trips of an action under a lease, counted on the wire, and those that its caller waits
//! for.

use std::time::Duration;

use ekbatan::action::Fence;
use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider, LockSource, ProcessBackend};
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;

use crate::database::TestDatabase;
use crate::providers::{Kind, LONG, on_postgres};
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError};
use support::{Dialect, ScratchDatabase, until};

/// The address of a database behind a proxy.
async fn proxied(url: &str) -> (String, Proxy) {
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
    let proxy = Proxy::start(address).await.unwrap();
    (proxy.url_for(url), proxy)
}

async fn wallet(db: &TestDatabase) -> Id<Wallet> {
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    db.executor().execute(&OpenWallet, opening).await.unwrap().id
}

fn one(wallet: Id<Wallet>) -> Deposit {
    Deposit { wallet, amount: Decimal::ONE }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_action_takes_four_round_trips_with_leases_on_postgres() {
    a_locked_action_takes_four_round_trips(Kind::PostgresLease).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_locked_action_takes_four_round_trips_with_a_session_on_postgres() {
    a_locked_action_takes_four_round_trips(Kind::PostgresSession).await;
}

/// Acquire, raise the fence and read, commit, and a release that the caller does not wait for.
async fn a_locked_action_takes_four_round_trips(kind: Kind) {
    let url = ScratchDatabase::create(Dialect::Postgres).await.url;
    let ((data_url, data), (lock_url, lock)) = (proxied(&url).await, proxied(&url).await);
    let db = TestDatabase::open(&data_url).await;
    let locks = on_postgres(kind, &lock_url).await;
    let wallet = wallet(&db).await;
    let key = lock_key!("wallet", wallet);
    let mut least = (u64::MAX, u64::MAX);
    // The first rounds prepare statements; a ping may add a round trip to any round.
    for _ in 0..10 {
        data.reset();
        lock.reset();
        let executor = db.executor();
        let call = executor.execute(&DepositMoney, one(wallet));
        call.with_lock(&locks, &key, LockOptions::wait(LONG)).await.unwrap();
        until("the release has arrived", async || lock.round_trips() >= 2).await;
        least = (least.0.min(data.round_trips()), least.1.min(lock.round_trips()));
        // Otherwise the next round could be handed the lock during its release.
        while locks.inspect(&key).await.unwrap().is_some() {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(least, (2, 2), "at the database, and at the locks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_action_takes_two_round_trips_on_postgres() {
    a_fenced_action_takes_two_round_trips(Dialect::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_action_takes_two_round_trips_on_mysql() {
    a_fenced_action_takes_two_round_trips(Dialect::MySql).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_action_takes_two_round_trips_on_mariadb() {
    a_fenced_action_takes_two_round_trips(Dialect::MariaDb).await;
}

async fn a_fenced_action_takes_two_round_trips(dialect: Dialect) {
    let (url, proxy) = proxied(&ScratchDatabase::create(dialect).await.url).await;
    let db = TestDatabase::open(&url).await;
    let locks = LockProvider::new(ProcessBackend::new(), "test");
    let wallet = wallet(&db).await;
    let key = lock_key!("wallet", wallet);
    let mut least = u64::MAX;
    for _ in 0..10 {
        proxy.reset();
        let executor = db.executor();
        let call = executor.execute(&DepositMoney, one(wallet));
        call.with_lock(&locks, &key, LockOptions::wait(LONG)).await.unwrap();
        least = least.min(proxy.round_trips());
    }
    assert_eq!(least, 2, "a read with the raise, and a commit");
}

/// Deposits; runs a closure between its read and its change.
pub struct Interrupted<F>(pub F);

impl<F, Fut> Action for Interrupted<F>
where
    F: Fn(u32) -> Fut + Send + Sync,
    Fut: Future<Output = ()> + Send,
{
    const NAME: &'static str = "wallet.interrupted";
    type Params = Deposit;
    type Output = u32;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<u32, WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        (self.0)(ctx.attempt()).await;
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        ctx.plan().update(wallet);
        Ok(ctx.attempt())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_attempt_does_not_raise_the_fence_again_on_postgres() {
    let url = ScratchDatabase::create(Dialect::Postgres).await.url;
    let (proxied_url, proxy) = proxied(&url).await;
    let db = TestDatabase::open(&proxied_url).await;
    let beside = TestDatabase::open(&url).await;
    let wallet = wallet(&db).await;
    db.executor().execute(&DepositMoney, one(wallet)).await.unwrap(); // prepares the bare read
    let mut least = u64::MAX;
    for token in 1..=5 {
        let overtaken = Interrupted(|attempt| {
            let executor = beside.executor();
            async move {
                if attempt == 1 {
                    // In a task of its own, because calls inside `perform` are refused.
                    let deposit = async move {
                        executor.execute(&DepositMoney, one(wallet)).await.unwrap();
                    };
                    tokio::spawn(deposit).await.unwrap();
                }
            }
        });
        proxy.reset();
        let executor = db.executor();
        let fence = Fence { key: "k".to_owned(), token, remaining: LONG };
        let call = executor.execute(&overtaken, one(wallet)).fenced_by(&fence);
        assert_eq!(call.await.unwrap(), 2);
        least = least.min(proxy.round_trips());
    }
    assert_eq!(least, 4, "two reads, the first with the raise, and two commits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_do_not_wait_for_the_release_of_a_lease_on_postgres() {
    callers_do_not_wait_for_the_release(Kind::PostgresLease).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_do_not_wait_for_the_release_of_a_session_lock_on_postgres() {
    callers_do_not_wait_for_the_release(Kind::PostgresSession).await;
}

/// The connection to the lock server goes silent while the action runs: the call commits and returns
/// nevertheless. Only closing the locks waits.
async fn callers_do_not_wait_for_the_release(kind: Kind) {
    let url = ScratchDatabase::create(Dialect::Postgres).await.url;
    let (lock_url, proxy) = proxied(&url).await;
    let db = TestDatabase::open(&url).await;
    let (locks, others) = (on_postgres(kind, &lock_url).await, on_postgres(kind, &url).await);
    let wallet = wallet(&db).await;
    let key = lock_key!("wallet", wallet);
    let silenced = Interrupted(|_| async { proxy.stall() });
    let executor = db.executor();
    let call = executor.execute(&silenced, one(wallet));
    call.with_lock(&locks, &key, LockOptions::wait(LONG)).await.unwrap();

    let held = others.try_acquire(&key, Duration::ZERO, LONG).await.unwrap();
    assert!(held.is_none(), "the server has not received the release");
    let mut closing = Box::pin(locks.close());
    assert!(closing.as_mut().now_or_never().is_none());
    proxy.resume();
    closing.await;
    let held = others.try_acquire(&key, Duration::ZERO, LONG).await.unwrap();
    assert!(held.is_some(), "closing has waited for the release");
}

#[tokio::test]
async fn a_kept_clone_does_not_hold_the_lock_after_the_work() {
    let locks = LockProvider::new(ProcessBackend::new(), "test");
    let key = LockKey::named("k");
    for panics in [false, true] {
        let kept = std::sync::Arc::new(std::sync::Mutex::new(None));
        let (provider, of, keep) = (locks.clone(), key.clone(), kept.clone());
        let worked = tokio::spawn(async move {
            let work = async |lease: Lease| {
                *keep.lock().unwrap() = Some(lease);
                assert!(!panics, "the work panics");
                Ok::<(), WalletError>(())
            };
            provider.with_lock(&of, LockOptions::wait(LONG), work).await
        });
        assert_eq!(worked.await.is_err(), panics);
        let kept = kept.lock().unwrap().take().unwrap();
        assert!(!kept.is_held());
        assert!(locks.acquire(&key, LONG).await.unwrap().release().await);
        drop(kept);
    }
}

/// One looks for callers that wait, one takes the permit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_free_permit_takes_two_round_trips() {
    let url = ScratchDatabase::create(Dialect::Postgres).await.url;
    let (lock_url, lock) = proxied(&url).await;
    let locks = on_postgres(Kind::PostgresLease, &lock_url).await;
    let semaphore = locks.semaphore(&LockKey::named("k"), 4);
    let options = LockOptions::wait(LONG).hold(LONG);
    let mut least = u64::MAX;
    for _ in 0..10 {
        lock.reset();
        let permit = semaphore.take(&options).await.unwrap().expect("all are free");
        least = least.min(lock.round_trips());
        assert!(permit.release().await);
    }
    assert_eq!(least, 2);
}
