//! Several processes; here each is a provider of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ekbatan::lock::{KeyedLockProvider, LockKey};
use support::until;

use super::{Space, asked, connection};
use crate::providers::LONG;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contending_processes_exclude_each_other_and_all_progress() {
    let space = Space::shared().await;
    let (inside, last) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let counts: Vec<_> = (0..2).map(|_| Arc::new(AtomicU64::new(0))).collect();
    let mut tasks = tokio::task::JoinSet::new();
    let until = Instant::now() + LONG;
    for process in 0..2 {
        let locks = space.locks().await;
        for _ in 0..4 {
            let (locks, inside, last) = (locks.clone(), inside.clone(), last.clone());
            let counts = counts.clone();
            tasks.spawn(async move {
                let key = LockKey::named("k");
                let enough = |count: &Arc<AtomicU64>| count.load(Ordering::SeqCst) >= 200;
                while !counts.iter().all(enough) {
                    assert!(Instant::now() < until, "one of them starves: {counts:?}");
                    let lease = locks.acquire(&key, LONG).await.unwrap();
                    assert!(!inside.swap(true, Ordering::SeqCst), "the key has one holder");
                    let token = lease.token().unsigned_abs();
                    assert!(last.swap(token, Ordering::SeqCst) < token, "tokens grow");
                    tokio::task::yield_now().await;
                    inside.store(false, Ordering::SeqCst);
                    counts[process].fetch_add(1, Ordering::SeqCst);
                    lease.release().await;
                }
            });
        }
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

/// The time between a release in one process and the lease in another one.
async fn hand_off(space: &Space) -> Duration {
    let (one, other) = (space.locks().await, space.locks().await);
    let key = LockKey::named("k");
    let held = one.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    let of_waiter = key.clone();
    let waiter = tokio::spawn(async move {
        let lease = other.try_acquire(&of_waiter, LONG, LONG).await.unwrap().unwrap();
        (Instant::now(), lease)
    });
    until_wanted(space).await;
    let begun = Instant::now();
    assert!(held.release().await);
    waiter.await.unwrap().0 - begun
}

/// Waits until a waiter has asked for a key that is held.
async fn until_wanted(space: &Space) {
    let mut server = connection(&space.url).await;
    let pattern = format!("{}:wanted:*", space.namespace);
    until("a waiter has asked", async || {
        !asked::<Vec<String>>(&mut server, &["KEYS", &pattern]).await.is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_is_notified_before_the_next_poll() {
    let mut fastest = Duration::MAX;
    for _ in 0..10 {
        fastest = fastest.min(hand_off(&Space::shared().await).await);
    }
    assert!(fastest < Duration::from_millis(100), "{fastest:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn releasing_an_unwanted_key_notifies_nobody() {
    let space = Space::shared().await;
    let locks = space.locks().await;
    let client = redis::Client::open(&*space.url).unwrap();
    let mut ear = client.get_async_pubsub().await.unwrap();
    let channel = format!("{}:freed", space.namespace);
    ear.subscribe(&channel).await.unwrap();
    let lease = locks.acquire(&LockKey::named("k"), LONG).await.unwrap();
    assert!(lease.release().await);
    let mut server = connection(&space.url).await;
    let () = asked(&mut server, &["PUBLISH", &channel, "the end"]).await;
    let mut said = ear.into_on_message();
    let first = futures_util::StreamExt::next(&mut said).await.unwrap();
    assert_eq!(first.get_payload_bytes(), b"the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_lets_in_a_waiter_of_another_process() {
    let space = Space::shared().await;
    let (one, other) = (space.locks().await, space.locks().await);
    let key = LockKey::named("k");
    let held = one.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    let waiting = other.try_acquire(&key, LONG, LONG);
    let forcing = async {
        until_wanted(&space).await;
        assert!(space.locks().await.force_release(&key, "it hangs").await.unwrap());
    };
    let (lease, ()) = tokio::join!(waiting, forcing);
    let lease = lease.unwrap().unwrap();
    // The forced release has used one token.
    assert!(lease.token() >> 16 > (held.token() >> 16) + 1);
    assert!(!held.release().await);
    assert!(lease.release().await);
}
