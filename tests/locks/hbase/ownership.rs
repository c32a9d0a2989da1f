//! What belongs to whom: grants that are repeated, given up or lost, and the rows of unused keys.

use std::time::Duration;

use ekbatan::lock::{Grant, KeyedLockProvider, LockBackend, LockKey, LockProvider, LossCause};
use ekbatan_testkit::{Dropped, HBaseServer, drop_at_poll};
use uuid::Uuid;

use super::{backend, request, taken};
use crate::providers::LONG;

async fn two_nodes() -> (LockProvider, LockProvider) {
    let namespace = Uuid::new_v4().to_string();
    let [one, other] = [backend(&namespace).await, backend(&namespace).await];
    (LockProvider::new(one, "test"), LockProvider::new(other, "test"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_learns_that_its_lease_was_ended_by_force_elsewhere() {
    let (one, other) = two_nodes().await;
    let key = LockKey::named("k");
    let lease = one.acquire(&key, LONG).await.unwrap();
    assert!(other.force_release(&key, "a test").await.unwrap());
    let lost = lease.lost().await;
    assert!(matches!(&lost, LossCause::SessionGone(why) if why.contains("HBase")), "{lost:?}");
    assert!(!lease.is_held() && !lease.release().await);
    assert!(!other.force_release(&key, "a test").await.unwrap());
}

#[tokio::test]
async fn a_try_dropped_at_any_poll_can_be_released_by_its_owner() {
    let namespace = Uuid::new_v4().to_string();
    let (one, other) = (backend(&namespace).await, backend(&namespace).await);
    let held = taken(&other, "busy", LONG).await;
    for key in ["free", "busy"] {
        for poll in 0.. {
            let request = request(LONG).waiting();
            let tried = drop_at_poll(poll, one.try_grant(key, &request)).await;
            let unheard = Grant { owner: request.owner, token: 0 };
            one.release(key, &unheard).await.unwrap();
            let holder = other.inspect(key).await.unwrap().map(|holder| holder.grant());
            assert_eq!(holder, (key == "busy").then_some(held), "after {poll} polls");
            if let Dropped::Finished(tried) = tried {
                // The number of polls depends on the sockets; at least one poll waits.
                assert!(poll > 0, "{tried:?}");
                break;
            }
        }
    }
    assert!(other.release("busy", &held).await.unwrap().ours);
    let next = taken(&one, "busy", LONG).await;
    assert!(one.release("busy", &next).await.unwrap().ours);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_arrives_after_it_was_given_up_has_no_effect() {
    let namespace = Uuid::new_v4().to_string();
    let (proxy, url) = HBaseServer::shared().await.unwrap().behind_proxy().await.unwrap();
    let behind = ekbatan::lock::HBaseBackend::connect(&url, &namespace).await.unwrap();
    let other = backend(&namespace).await;
    for known in [false, true] {
        let key = format!("known: {known}");
        if known {
            let grant = taken(&behind, &key, LONG).await;
            assert!(behind.release(&key, &grant).await.unwrap().ours);
        }
        proxy.set_delay(Duration::from_millis(100));
        let late = request(LONG);
        let tried = tokio::time::timeout(Duration::from_millis(20), behind.try_grant(&key, &late));
        assert!(tried.await.is_err(), "its request is on its way");
        // Over another connection, it is given up before it arrives.
        other.release(&key, &Grant { owner: late.owner, token: 0 }).await.unwrap();
        proxy.set_delay(Duration::ZERO);
        // Behind the late one, on the same connection.
        behind.inspect(&key).await.unwrap();
        assert_eq!(other.inspect(&key).await.unwrap(), None, "known: {known}");
    }
}

/// Tokens that are ahead of the clock, as if it had been set back, and rows that an old lease left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_grow_whatever_the_clock_and_old_rows_are_deleted() {
    let namespace = Uuid::new_v4().to_string();
    let backend = backend(&namespace).await;
    let mut rows = HBaseServer::shared().await.unwrap().rows("ekbatan_locks").await.unwrap();
    let first = taken(&backend, "ahead", LONG).await;
    assert!(backend.release("ahead", &first).await.unwrap().ours);
    let ahead = first.token + 1_000_000_000;
    let state = format!("free {ahead} 0000000000000001");
    rows.put(&format!("{namespace}/ahead"), "a", state.as_bytes()).await.unwrap();
    let next = taken(&backend, "ahead", LONG).await;
    assert_eq!(next.token, ahead + 1);
    assert!(backend.release("ahead", &next).await.unwrap().ours);

    // Two days ago; but the row itself is young, so it is kept until it is as old.
    let old = format!("free {} 0000000000000002", first.token - 172_800_000);
    rows.put_at(&format!("{namespace}/old"), "a", old.as_bytes(), 172_800_000).await.unwrap();
    rows.put(&format!("{namespace}/young"), "a", old.as_bytes()).await.unwrap();
    let mut is_there =
        async |key: &str| !rows.get(&format!("{namespace}/{key}")).await.unwrap().is_empty();
    assert!(is_there("old").await);
    for n in 0..600 {
        let key = format!("k {n}");
        let grant = taken(&backend, &key, LONG).await;
        assert!(backend.release(&key, &grant).await.unwrap().ours);
    }
    support::until("the old row is deleted", async || !is_there("old").await).await;
    assert!(is_there("young").await && is_there("ahead").await && is_there("k 0").await);
    // What follows a deletion is not hidden by it.
    let grant = taken(&backend, "old", LONG).await;
    assert_eq!(backend.inspect("old").await.unwrap().unwrap().grant(), grant);
}
