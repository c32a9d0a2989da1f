//! A release by force ends the lease that it found, and never the lease of a successor.

use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider};

use crate::providers::{Kind, LONG, TestLocks};
use crate::sql::place::acquire_eventually;
use support::soak::rounds;

on_every_provider! {
    a_successor_in_the_same_process_keeps_its_lease,
    a_successor_on_another_node_keeps_its_lease,
    a_holder_on_another_node_is_ended_and_its_successor_is_not,
}

const KEY: &str = "k";

/// Waits in a task for the key.
fn waiter(locks: &LockProvider) -> tokio::task::JoinHandle<Lease> {
    let locks = locks.clone();
    tokio::spawn(async move { locks.acquire(&LockKey::named(KEY), LONG).await.unwrap() })
}

/// Runs rounds in which `forced_by` ends the lease of `t.locks` while `next` waits for it. In
/// half of the rounds the holder releases the lease at the same time.
async fn successors_keep_their_leases(
    t: &TestLocks,
    next: &LockProvider,
    forced_by: &LockProvider,
) {
    let key = LockKey::named(KEY);
    let beside = t.other_node().await;
    for round in 0..rounds(60, 400) {
        // On MySQL, the force of the last round has ended a session of this process.
        let held = acquire_eventually(&t.locks, &key).await;
        let waiting = waiter(next);
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..1_500))).await;
        if round % 2 == 0 {
            assert!(forced_by.force_release(&key, "a test").await.unwrap(), "round {round}");
        } else {
            let releasing = async {
                tokio::time::sleep(Duration::from_micros(fastrand::u64(0..500))).await;
                held.release().await
            };
            let forcing = forced_by.force_release(&key, "a test");
            let (forced, released) = tokio::join!(forcing, releasing);
            if released && forced.is_ok_and(|ended| ended) {
                // The holder had released the key, so the call found the successor.
                waiting.await.unwrap().release().await;
                continue;
            }
        }
        let successor = waiting.await.unwrap();
        assert!(successor.is_held(), "round {round}: {:?}", successor.lost().await);
        let other = beside.try_acquire(&key, Duration::ZERO, LONG).await.unwrap();
        assert!(other.is_none(), "round {round}: a second holder");
        assert!(successor.release().await, "round {round}: the server has ended it");
        // A process that has not noticed the force would hand the ended grant on.
        held.release().await;
    }
}

async fn a_successor_in_the_same_process_keeps_its_lease(t: &TestLocks) {
    successors_keep_their_leases(t, &t.locks, &t.locks).await;
}

async fn a_successor_on_another_node_keeps_its_lease(t: &TestLocks) {
    let other = t.other_node().await;
    successors_keep_their_leases(t, &other, &t.locks).await;
}

async fn a_holder_on_another_node_is_ended_and_its_successor_is_not(t: &TestLocks) {
    let other = t.other_node().await;
    if t.kind() == Kind::PostgresSession {
        // The server cannot end a lock of another session.
        let held = t.hold(&LockKey::named(KEY)).await;
        other.force_release(&LockKey::named(KEY), "a test").await.unwrap_err();
        assert!(held.release().await);
        return;
    }
    successors_keep_their_leases(t, &other, &other).await;
}
