//! Calls that contend for several keys: a transfer names both of its wallets.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use ekbatan::action::{Budget, Coalesced, ErrorKind, Pessimistic, RetryPolicy};
use ekbatan::config::{LockConfig, LockProviderKind};
use ekbatan::domain::ShardIdentifier;
use ekbatan::lock::{LockKey, LockProvider, ProcessBackend};
use ekbatan::prelude::*;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use support::TestDatabase;
use support::wallet::{OpenWallet, Opening, Wallet};

use crate::acts::{Groups, a_thing, in_queue, touch, touch_after_reading};

on_every_database! {
    transfers_to_one_wallet_meet_in_its_queue,
    a_call_holds_the_leases_of_all_its_keys,
    pessimistic_transfers_in_both_directions_do_not_deadlock,
    coalesced_transfers_lose_nothing,
    coalesced_transfers_under_a_lease_lose_nothing,
    adaptive_transfers_lose_nothing,
}

on_every_database! {
    on_sqlite_only:
    keys_that_lead_to_one_lock_are_one_key,
}

struct Transfer;

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Between {
    from: Id<Wallet>,
    to: Id<Wallet>,
}

impl Action for Transfer {
    const NAME: &'static str = "contention.transfer";
    type Params = Between;
    type Output = ();
    type Error = ReadError;

    fn contention_keys(&self, between: &Between) -> Vec<LockKey> {
        vec![lock_key!("wallet", between.from), lock_key!("wallet", between.to)]
    }

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        between: &Between,
    ) -> Result<(), ReadError> {
        let (from, to) = (ctx.get(between.from).await?, ctx.get(between.to).await?);
        ctx.plan().update(from.apply(|wallet| wallet.balance -= Decimal::ONE));
        ctx.plan().update(to.apply(|wallet| wallet.balance += Decimal::ONE));
        Ok(())
    }
}

fn locks() -> LockProvider {
    LockProvider::new(ProcessBackend::new(), "test")
}

/// An executor that retries conflicts practically without limit.
async fn executor(db: &TestDatabase, contention: impl Into<Contention>) -> ActionExecutor {
    let quick = Budget::new(100_000).base(Duration::from_millis(1)).cap(Duration::from_millis(50));
    let policy = RetryPolicy::none().with(ErrorKind::Stale, quick).with(ErrorKind::Deadlock, quick);
    let builder = ActionExecutor::builder(&db.databases, "tests").model::<Wallet>();
    let builder = builder.retry(policy).leases(locks()).contention(contention);
    builder.build().await.unwrap()
}

async fn wallets(executor: &ActionExecutor, number: usize) -> Vec<Id<Wallet>> {
    let mut wallets = Vec::new();
    for _ in 0..number {
        let opening = Opening { owner: "all".to_owned(), currency: "EUR".to_owned() };
        wallets.push(executor.execute(&OpenWallet, opening).await.unwrap().id);
    }
    wallets
}

async fn transfers_to_one_wallet_meet_in_its_queue(db: &TestDatabase) {
    let (groups, _counting) = Groups::count();
    let executor = executor(db, Contention::adaptive()).await;
    let wallets = wallets(&executor, 17).await;
    let (to, sources) = wallets.split_first().unwrap();
    let hot = lock_key!("wallet", *to);
    let (mut rounds, began) = (0, Instant::now());
    // Conflicts make the key hot only if they are close together, which they may not be on a
    // slow machine.
    while groups.sizes().iter().all(|members| *members < 2) {
        rounds += 1;
        assert!(began.elapsed() < Duration::from_secs(600), "no calls met in {rounds} rounds");
        let calls = sources.iter().map(|from| {
            executor.execute(&Transfer, Between { from: *from, to: *to }).into_future()
        });
        for answer in join_all(calls).await {
            answer.unwrap();
        }
    }
    let found = executor.hot_keys();
    // The sources conflict only as long as the target is not hot.
    assert!(found.first().is_none_or(|hottest| hottest.key == hot), "{found:?}");
    let stored = db.databases.repository::<Wallet>().get(*to).await.unwrap();
    assert_eq!(stored.balance, Decimal::from(16 * rounds));
}

async fn a_call_holds_the_leases_of_all_its_keys(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let locks = locks();
    let builder = ActionExecutor::builder(&db.databases, "tests");
    let executor = builder.leases(locks.clone()).build().await.unwrap();
    let (slow, read, gate) = touch_after_reading(id);
    let keys = ["b", "a", "b"].map(LockKey::named);
    let call = in_queue(&executor, &slow).contention(Contention::pessimistic());
    let call = call.contention_keys(keys.clone()).into_future();
    let held = async {
        read.pass().await;
        for key in &keys {
            assert!(locks.inspect(key).await.unwrap().is_some(), "{key}");
        }
        gate.open();
    };
    let (touched, ()) = tokio::join!(call, held);
    assert_eq!(touched.unwrap().version(), 2);
    assert_eq!(db.count(&db.eventlog("lock_fences")).await, 2);
    for key in &keys {
        assert!(locks.acquire(key, Duration::from_secs(60)).await.is_ok(), "{key}");
    }
}

/// Transfers between all pairs of a few wallets, by several tasks at a time.
async fn nothing_is_lost(db: &TestDatabase, contention: impl Into<Contention>) {
    let executor = executor(db, contention).await;
    let wallets = wallets(&executor, 3).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..6 {
        let (executor, wallets) = (executor.clone(), wallets.clone());
        tasks.spawn(async move {
            for n in 0..20 {
                let from = wallets[(task + n) % 3];
                let to = wallets[(task + n + 1 + n % 2) % 3];
                executor.execute(&Transfer, Between { from, to }).await.unwrap();
            }
        });
    }
    let all = tokio::time::timeout(Duration::from_secs(600), tasks.join_all()).await;
    all.expect("two calls wait for each other");
    let stored = db.databases.repository::<Wallet>().find_all().await.unwrap();
    let sum: Decimal = stored.iter().map(|wallet| wallet.balance).sum();
    let changes: i64 = stored.iter().map(|wallet| wallet.version() - 1).sum();
    assert_eq!((sum, changes), (Decimal::ZERO, 2 * 6 * 20));
}

/// A key without a shard has its lock on the default shard.
async fn keys_that_lead_to_one_lock_are_one_key(db: &TestDatabase) {
    let id = a_thing(db).await.id;
    let here = LockKey::named("a").on_shard(ShardIdentifier::default());
    let keys = [LockKey::named("a"), LockKey::named("b"), here];
    let config =
        EkbatanConfig::from(db.config()).locks(LockConfig::of(LockProviderKind::InProcess));
    let registry = KeyedLocks::connect(&config).await.unwrap();
    let builder = || ActionExecutor::builder(&db.databases, "tests");
    for builder in [builder().leases(registry), builder().leases(locks())] {
        let (executor, touches) = (builder.build().await.unwrap(), touch(id));
        let patient = Pessimistic::default().wait(Duration::from_secs(20));
        let call = in_queue(&executor, &touches).contention(patient);
        call.contention_keys(keys.clone()).await.unwrap();
    }
}

async fn pessimistic_transfers_in_both_directions_do_not_deadlock(db: &TestDatabase) {
    nothing_is_lost(db, Contention::pessimistic()).await;
}

async fn coalesced_transfers_lose_nothing(db: &TestDatabase) {
    nothing_is_lost(db, Contention::coalesced()).await;
}

async fn coalesced_transfers_under_a_lease_lose_nothing(db: &TestDatabase) {
    nothing_is_lost(db, Coalesced::default().under_lease(Pessimistic::default())).await;
}

async fn adaptive_transfers_lose_nothing(db: &TestDatabase) {
    nothing_is_lost(db, Contention::adaptive()).await;
}
