//! The errors that callers get when the server fails, and waits that leave nothing at the server.

use std::error::Error;
use std::time::{Duration, Instant};

use ekbatan::lock::{LockError, LockKey, WithLockError};
use ekbatan::prelude::*;
use support::seed;
use tokio::task::JoinSet;

use crate::providers::Kind;
use crate::server::LockServer;

on_every_provider! {
    interrupted_waits_keep_no_lock,
    a_wait_that_outlasts_its_wish_is_served,
}
mod servers {
    use super::*;

    on_every_server! {
        a_server_that_is_down_is_an_error_that_says_why,
        the_result_of_the_work_is_returned_also_when_the_release_fails,
    }
}
on_providers! {
    [postgres_session_alone PostgresSession]
    a_lock_that_cannot_be_released_ends_its_session
}
on_providers! { [postgres_lease_alone PostgresLease] a_lease_that_cannot_be_released_expires }

const LONG: Duration = Duration::from_secs(60);

/// So long that no lease expires during the test.
const HOLD: Duration = Duration::from_secs(3_600);

async fn a_server_that_is_down_is_an_error_that_says_why(kind: Kind) {
    let server = LockServer::start(kind).await;
    let locks = kind.connect(&server.url).await;
    server.kill().await;
    let key = LockKey::named("k");
    // A caller that waits gets the error when its wait is over.
    let tried = locks.try_acquire(&key, Duration::from_secs(1), LONG).await.map(drop);
    let tried_now = locks.try_acquire(&key, Duration::ZERO, LONG).await.map(drop);
    let inspected = locks.inspect(&key).await.map(drop);
    let forced = locks.force_release(&key, "a test").await.map(drop);
    for answer in [tried, tried_now, inspected, forced] {
        let error = answer.unwrap_err();
        let kind = matches!(error, LockError::Unavailable { .. } | LockError::InDoubt { .. });
        assert!(kind, "{error:?}");
        let cause = error.source().expect("a cause").to_string();
        assert!(error.to_string().contains("`k`") && error.to_string().contains(&cause));
    }
    server.restart().await;
    // A request that began while the server was down may still fail.
    let lease = loop {
        if let Ok(lease) = locks.acquire(&key, LONG).await {
            break lease;
        }
    };
    assert!(lease.release().await);
}

async fn the_result_of_the_work_is_returned_also_when_the_release_fails(kind: Kind) {
    let server = LockServer::start(kind).await;
    let locks = kind.connect(&server.url).await;
    for (n, work) in [Ok("done"), Err("refused")].into_iter().enumerate() {
        let key = LockKey::named(&format!("k {n}"));
        let options = LockOptions::wait(LONG).hold(LONG);
        let result = locks.with_lock(&key, options, async |_| {
            server.kill().await;
            work
        });
        match (result.await, work) {
            (Ok(done), Ok(work)) => assert_eq!(done, work),
            (Err(WithLockError::Work(refused)), Err(work)) => assert_eq!(refused, work),
            (other, _) => panic!("{other:?}"),
        }
        server.restart().await;
        // The next round needs a connection.
        while locks.inspect(&key).await.is_err() {}
    }
}

/// A wait that the server interrupts may have got the lock although nobody knows.
async fn interrupted_waits_keep_no_lock(kind: Kind) {
    let waits = kind.rounds(150, 1_500);
    let mut random = seed::random();
    let server = LockServer::shared(kind).await;
    let mut tasks = JoinSet::new();
    for _ in 0..2 {
        let locks = kind.connect(&server.url).await;
        for _ in 0..2 {
            let (locks, mut random) = (locks.clone(), random.fork());
            tasks.spawn(async move {
                let key = LockKey::named("k");
                let mut granted = 0;
                for _ in 0..waits {
                    let wait = Duration::from_micros(random.u64(1..2_000));
                    let taken = match locks.try_acquire(&key, wait, HOLD).await {
                        // The wait was shorter than the server takes to answer.
                        Err(LockError::Unavailable { .. } | LockError::InDoubt { .. }) => None,
                        taken => taken.unwrap(),
                    };
                    if let Some(lease) = taken {
                        granted += 1;
                        tokio::time::sleep(Duration::from_micros(random.u64(..300))).await;
                        // An answer that comes too late is none.
                        let asked = Instant::now();
                        let is_released = lease.release().await;
                        assert!(is_released || asked.elapsed() >= kind.answer_timeout());
                    }
                }
                (granted, locks)
            });
        }
    }
    let ended = tasks.join_all().await;
    let granted: Vec<usize> = ended.iter().map(|(granted, _)| *granted).collect();
    println!("{kind:?}: of {waits} waits each, {granted:?} got the lock");
    assert!(granted.iter().sum::<usize>() < 4 * waits, "no wait was too short");
    for (_, locks) in &ended {
        let free = locks.try_acquire(&LockKey::named("k"), LONG, HOLD).await.unwrap();
        assert!(free.expect("the key is free").release().await);
    }
    assert_eq!(server.held().await, Vec::<String>::new());
}

/// A server remembers for two seconds that a key is wanted; a longer wait repeats its wish.
async fn a_wait_that_outlasts_its_wish_is_served(kind: Kind) {
    let server = LockServer::shared(kind).await;
    let (one, other) = (kind.connect(&server.url).await, kind.connect(&server.url).await);
    let key = LockKey::named("k");
    let held = one.acquire(&key, LONG).await.unwrap();
    let of_waiter = key.clone();
    let waiter = tokio::spawn(async move { other.acquire(&of_waiter, LONG).await });
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(held.is_held() && !waiter.is_finished());
    assert!(held.release().await);
    assert!(waiter.await.unwrap().unwrap().release().await);
}

/// The session is ended, so that the server frees everything that it held.
async fn a_lock_that_cannot_be_released_ends_its_session(kind: Kind) {
    let server = LockServer::start(kind).await;
    // The owner creates the tables that the guest uses.
    let owner = kind.connect(&server.url).await;
    server
        .postgres(
            "CREATE ROLE guest LOGIN; GRANT USAGE ON SCHEMA eventlog TO guest; \
             GRANT ALL ON ALL TABLES IN SCHEMA eventlog TO guest; \
             GRANT ALL ON ALL SEQUENCES IN SCHEMA eventlog TO guest",
        )
        .await;
    let guest = kind.connect(&server.url.replacen("postgres@", "guest@", 1)).await;
    let (key, bystander) = (LockKey::named("k"), LockKey::named("bystander"));
    let lease = guest.acquire(&key, LONG).await.unwrap();
    let of_bystander = guest.acquire(&bystander, LONG).await.unwrap();
    server.postgres("REVOKE EXECUTE ON FUNCTION pg_advisory_unlock(bigint) FROM PUBLIC").await;
    assert!(!lease.release().await, "the outcome of the release is unknown");
    of_bystander.lost().await;
    for key in [key, bystander] {
        assert!(owner.acquire(&key, LONG).await.unwrap().release().await);
    }
}

async fn a_lease_that_cannot_be_released_expires(kind: Kind) {
    let server = LockServer::shared(kind).await;
    let locks = kind.connect(&server.url).await;
    let key = LockKey::named("k");
    let lease = locks.acquire(&key, Duration::from_secs(2)).await.unwrap();
    server.postgres("ALTER TABLE eventlog.lock_leases RENAME TO away").await;
    assert!(!lease.release().await, "the outcome of the release is unknown");
    server.postgres("ALTER TABLE eventlog.away RENAME TO lock_leases").await;
    let again = locks.acquire(&key, LONG).await.unwrap();
    assert!(again.token() > lease.token());
    assert!(again.release().await);
}
