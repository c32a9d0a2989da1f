//! Tokens that are counted from another time: what was granted before is recognised, and what is granted
//! afterwards has a greater token.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ekbatan::lock::{
    Attempt, Grant, HandOver, KeyedLockProvider, LockBackend, LockKey, LockProvider, lock_key,
};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::Dialect;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening};

use super::{Space, request, taken};
use crate::database::TestDatabase;
use crate::providers::LONG;

/// So far tokens may be behind the clock.
const DAY: i64 = 86_400_000;

/// Older than a token may be that begins a fence.
const MONTH: i64 = 31 * DAY;

fn now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(now.as_millis()).unwrap()
}

impl Space<'_> {
    async fn count_from(&self, epoch: i64) {
        self.server.put(&format!("{}/epoch", self.namespace), &epoch.to_string()).await.unwrap();
    }
}

/// The namespace is a month old, or becomes that old while a process is connected.
#[tokio::test]
async fn leases_of_a_namespace_that_is_a_month_old_begin_fences() {
    let database = TestDatabase::start(Dialect::Sqlite).await;
    let executor = database.executor();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    let fenced = async |locks: &LockProvider, name: &'static str| {
        let lease = locks.acquire(&LockKey::named(name), LONG).await.unwrap();
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        executor.execute(&DepositMoney, deposit).fenced_by(&lease).await.unwrap();
        assert!(lease.release().await);
    };
    let space = Space::shared().await;
    space.count_from(now() - MONTH).await;
    let locks = space.locks().await;
    fenced(&locks, "at first").await;
    space.count_from(now() - MONTH).await;
    fenced(&locks, "later").await;
}

#[tokio::test]
async fn grants_stand_when_tokens_are_counted_from_a_later_time() {
    let space = Space::shared().await;
    let (one, other) = (space.backend().await, space.backend().await);
    let [extended, looked, ended, left] = [
        taken(&one, "extended", LONG).await,
        taken(&one, "looked", LONG).await,
        taken(&one, "ended", LONG).await,
        taken(&one, "left", LONG).await,
    ];
    // Two waiters had their places before.
    let waiting = [request(LONG).waiting(), request(LONG).waiting()];
    let mut handed = Vec::new();
    for waiter in &waiting {
        let mut next = other.handed_over("extended", waiter.owner);
        assert!(next.as_mut().now_or_never().is_none());
        assert_eq!(other.try_grant("extended", waiter).await.unwrap(), Attempt::Queued);
        handed.push(next);
    }
    // Another process, whose clock is ahead, has moved the epoch.
    space.count_from(now() + MONTH).await;
    for _ in 0..3 {
        assert!(one.extend("extended", &extended, LONG).await.unwrap());
    }
    let gone = one.lost("looked", &looked);
    let seen = other.inspect("ended").await.unwrap().unwrap();
    assert_eq!(seen.owner, Some(ended.owner));
    assert!(other.force_release("ended", &seen.grant(), "a test").await.unwrap());
    assert!(!one.release("ended", &ended).await.unwrap().ours);
    assert!(one.release("left", &left).await.unwrap().ours);
    assert!(!one.release("left", &left).await.unwrap().ours);
    let stands = tokio::time::timeout(Duration::from_millis(500), gone).await;
    assert!(stands.is_err(), "{stands:?}");
    assert!(one.release("looked", &looked).await.unwrap().ours);
    // Those who come next have greater tokens, in the order of their places.
    assert!(one.release("extended", &extended).await.unwrap().ours);
    let mut last: Grant = extended;
    for next in handed {
        let HandOver { grant, .. } = next.await.expect("it is the next");
        assert!(grant.token > last.token, "{grant:?} after {last:?}");
        assert!(other.extend("extended", &grant, LONG).await.unwrap());
        assert!(other.release("extended", &grant).await.unwrap().ours);
        last = grant;
    }
    let next = taken(&one, "extended", LONG).await;
    assert!(next.token > last.token, "{next:?} after {last:?}");
    assert!(one.release("extended", &next).await.unwrap().ours);
}

#[tokio::test]
async fn a_lease_is_ended_by_force_when_tokens_are_counted_from_a_later_time() {
    let space = Space::shared().await;
    let locks = space.locks().await;
    let key = lock_key!("k");
    let lease = locks.acquire(&key, LONG).await.unwrap();
    space.count_from(now() + MONTH).await;
    let forced = tokio::time::timeout(LONG, locks.force_release(&key, "a test")).await;
    assert!(forced.expect("it is found").unwrap());
    assert!(!lease.is_held());
    let next = locks.acquire(&key, LONG).await.unwrap();
    assert!(next.token() > lease.token());
    assert!(next.release().await);
}

/// Others may count from the epoch of the same answers, until they see the one that this process writes.
#[tokio::test]
async fn a_token_is_counted_from_the_epoch_of_its_answer() {
    let space = Space::shared().await;
    taken(&space.backend().await, "k", LONG).await;
    space.count_from(now() - 2 * DAY).await;
    // It finds the tokens behind the clock, and moves the epoch.
    let other = space.backend().await;
    let seen = other.inspect("k").await.unwrap().unwrap();
    let later = other.inspect("k").await.unwrap().unwrap();
    assert!(seen.token < now() - DAY && later.token > seen.token + DAY, "{seen:?}, {later:?}");
    assert!(other.force_release("k", &seen.grant(), "a test").await.unwrap());
}
