//! The spans, events and counters of locks.

use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, LockKey, LockOptions, LockProvider, LockScope, ProcessBackend,
};
use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use support::{Dialect, Recorded, Recorder, until};
use tracing::Instrument;

use crate::database::TestDatabase;
use crate::providers::{Kind, LONG, on_postgres};
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening};

const ACQUIRE: &str = "ekbatan.lock.acquire";
const HOLD: &str = "ekbatan.lock.hold";

/// A field whose name begins with `ekbatan.lock`.
fn field<'r>(recorded: &'r Recorded, name: &str) -> Option<&'r str> {
    recorded.field(&format!("ekbatan.lock.{name}"))
}

fn in_process() -> LockProvider {
    LockProvider::new(ProcessBackend::new(), "test")
}

#[tokio::test]
async fn a_lease_has_a_span_for_its_acquisition_and_one_for_its_hold() {
    let locks = in_process();
    let (recorder, _guard) = Recorder::start();
    let around = tracing::info_span!("around");
    let key = lock_key!("wallet", 17);
    let lease = locks.acquire(&key, LONG).instrument(around).await.unwrap();
    let token = lease.token().to_string();
    assert!(field(&recorder.of(HOLD)[0], "outcome").is_none(), "the lease is still held");
    assert!(lease.release().await);

    let (acquire, hold) = (recorder.one(ACQUIRE), recorder.one(HOLD));
    for span in [&acquire, &hold] {
        assert_eq!(span.parent.as_deref(), Some("around"));
        assert_eq!(field(span, "key"), Some("wallet:17"));
        assert_eq!(field(span, "provider"), Some("in-process"));
        assert_eq!(field(span, "token"), Some(&*token));
    }
    assert_eq!(field(&acquire, "outcome"), Some("granted"));
    assert_eq!(field(&acquire, "handed_on"), Some("0"));
    assert!(field(&acquire, "wait_us").is_some() && acquire.follows.is_empty());
    assert_eq!(field(&hold, "outcome"), Some("released"));
    assert!(field(&hold, "held_us").is_some());
}

#[tokio::test]
async fn the_span_of_a_waiter_follows_from_those_of_the_holders_before_it_on_postgres() {
    let locks = in_process();
    let key = LockKey::named("k");
    let (recorder, _guard) = Recorder::start();
    let first = locks.acquire(&key, LONG).await.unwrap();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let (locks, key) = (locks.clone(), key.clone());
            tokio::spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await })
        })
        .collect();
    while locks.inspect(&key).await.unwrap().unwrap().waiting_here < 2 {
        tokio::task::yield_now().await;
    }
    assert!(first.release().await);
    for waiter in waiting {
        assert!(waiter.await.unwrap());
    }
    let holds: Vec<u64> = recorder.of(HOLD).iter().filter_map(|hold| hold.id).collect();
    let acquired = recorder.of(ACQUIRE);
    assert_eq!((holds.len(), acquired.len()), (3, 3));
    assert!(acquired[0].follows.is_empty() && field(&acquired[0], "between_us").is_none());
    assert_eq!(acquired[1].follows, holds[..1], "it waited for the first holder");
    assert_eq!(acquired[2].follows, holds[..2], "it waited for the first and the second holder");
    assert!(field(&acquired[1], "between_us").is_some());
    let counters = locks.counters();
    assert_eq!((counters.granted, counters.contended, counters.lost), (3, 2, 0));
    assert!(counters.waited >= counters.between);
}

#[tokio::test]
async fn busy_reentered_and_lost_have_outcomes_of_their_own() {
    let locks = in_process();
    let key = LockKey::named("k");
    let (recorder, _guard) = Recorder::start();
    let short = Duration::from_millis(20);
    LockScope::run(async {
        let lease = locks.acquire(&key, LONG).await.unwrap();
        drop(locks.acquire(&key, LONG).await.unwrap());
        let (locks, key) = (locks.clone(), key.clone());
        let other = async move {
            for wait in [Duration::ZERO, short] {
                assert!(locks.try_acquire(&key, wait, LONG).await.unwrap().is_none());
            }
        };
        tokio::spawn(other).await.unwrap();
        assert!(lease.release().await);
    })
    .await;
    let acquired = recorder.of(ACQUIRE);
    let outcomes: Vec<_> = acquired.iter().filter_map(|span| field(span, "outcome")).collect();
    assert_eq!(outcomes, ["granted", "granted", "busy", "busy"]);
    // The scope holds the key once.
    let held = recorder.one(HOLD);
    for busy in &acquired[2..] {
        assert_eq!(busy.follows, [held.id.unwrap()]);
    }
    let lease = locks.acquire(&key, short).await.unwrap();
    lease.lost().await;
    assert!(!lease.release().await);
    // The worker of the key may notice the loss later than the holder.
    while recorder.of("ekbatan.lock.lost").is_empty() {
        tokio::task::yield_now().await;
    }
    let lost = recorder.one("ekbatan.lock.lost");
    assert_eq!(lost.parent.as_deref(), Some(HOLD));
    assert_eq!(lost.fields["key"], key.to_string());
    assert_eq!(field(&recorder.of(HOLD)[1], "outcome"), Some("expired"));
    let counters = locks.counters();
    assert_eq!((counters.granted, counters.reentered, counters.lost), (2, 1, 1));
    assert_eq!(counters.busy, 2);
}

#[tokio::test]
async fn a_release_by_force_is_logged_if_it_ended_a_lease() {
    let (locks, key) = (in_process(), LockKey::named("k"));
    let (recorder, _guard) = Recorder::start();
    assert!(locks.force_release(&key, "nobody has it").await.is_ok_and(|ended| !ended));
    assert!(recorder.of("ekbatan.lock.forced").is_empty(), "nothing was ended");
    let held = locks.acquire(&key, LONG).await.unwrap();
    assert!(locks.force_release(&key, "a test").await.unwrap() && !held.is_held());
    recorder.one("ekbatan.lock.forced");
}

#[tokio::test]
async fn a_waiter_names_the_process_that_it_waits_for_on_postgres() {
    for kind in [Kind::PostgresLease, Kind::PostgresSession] {
        let url = PostgresServer::shared().await.unwrap().create_database().await.unwrap();
        let (theirs, ours) = (on_postgres(kind, &url).await, on_postgres(kind, &url).await);
        let key = LockKey::named("k");
        let (recorder, _guard) = Recorder::start();
        let held = theirs.acquire(&key, LONG).await.unwrap();
        let waiting = {
            let (ours, key) = (ours.clone(), key.clone());
            tokio::spawn(async move { ours.acquire(&key, LONG).await.unwrap().release().await })
        };
        let named = || {
            let acquired = recorder.of(ACQUIRE);
            acquired.get(1).and_then(|span| field(span, "waited_for").map(str::to_owned))
        };
        let holder = loop {
            match named() {
                Some(holder) => break holder,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        };
        assert!(holder.contains(&std::process::id().to_string()), "{holder}");
        assert!(held.release().await && waiting.await.unwrap());
        let acquired = &recorder.of(ACQUIRE)[1];
        if kind == Kind::PostgresLease {
            // The server's part of the token; the low bits are counted by the process.
            let token = (held.token() >> 16).to_string();
            assert_eq!(field(acquired, "waited_for_token"), Some(&*token));
        }
        let counters = ours.counters();
        assert_eq!((counters.granted, counters.contended), (1, 1), "{kind:?}");
        assert!(counters.hints + counters.polls > 0, "{kind:?}");
        let retries = recorder.of("ekbatan.lock.retry");
        assert!(retries.iter().all(|retry| retry.parent.as_deref() == Some(ACQUIRE)));
        // A lease that the holder hands over is a hint, and needs no further try.
        let handed_over = counters.hints + counters.polls - retries.len() as u64;
        assert!(handed_over <= u64::from(kind == Kind::PostgresLease), "{kind:?}");
    }
}

#[tokio::test]
async fn a_lease_that_is_held_for_too_long_is_logged_once() {
    let locks = in_process().warning_after(Some(Duration::from_millis(1)));
    let (recorder, _guard) = Recorder::start();
    let lease = locks.acquire(&LockKey::named("k"), LONG).await.unwrap();
    let logged = || recorder.of("ekbatan.lock.held_long");
    until("it is logged", async || !logged().is_empty()).await;
    assert!(lease.release().await);
    let [logged] = &logged()[..] else { panic!("it is logged more than once") };
    assert_eq!(logged.fields["key"], "k");
    assert_eq!(logged.fields["token"], lease.token().to_string());
}

#[tokio::test]
async fn a_commit_that_the_fence_rejects_is_logged_and_counted() {
    let database = TestDatabase::start(Dialect::Sqlite).await;
    let executor = database.executor();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    let (locks, key) = (in_process(), lock_key!("wallet", wallet));
    let (recorder, _guard) = Recorder::start();
    let lease = locks.take(&key, &LockOptions::default()).await.unwrap().unwrap();
    assert!(lease.release().await);
    let deposit = Deposit { wallet, amount: Decimal::ONE };
    let rejected = executor.execute(&DepositMoney, deposit).fenced_by(&lease).await;
    let why = match rejected {
        Err(error @ ExecuteError::FenceLost { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    // Not the key as its provider stores it.
    assert!(why.starts_with(&format!("the lease on `{key}` ended before the commit")), "{why}");
    assert_eq!(executor.fence_refusals(), 1);
    let logged = recorder.one("ekbatan.lock.fence_refused");
    assert_eq!(logged.parent.as_deref(), Some("ekbatan.action.execute"));
    assert_eq!(logged.fields["key"], key.to_string());
}
