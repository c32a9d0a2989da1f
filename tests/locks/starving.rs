//! A process that hears no messages of the server gets its turn among others that do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider};
use ekbatan_testkit::PostgresServer;
use support::until;

use crate::pooler::{Greeting, balanced};
use crate::providers::{Kind, LONG, on_postgres};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_a_pooler_a_process_gets_its_turn_with_leases_on_postgres() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let pooled = balanced(&url, 1, Greeting::OfThePooler).await;
    let behind = on_postgres(Kind::PostgresLease, &pooled).await;
    let key = LockKey::named("k");
    let (stopped, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..2 {
        let direct: LockProvider = on_postgres(Kind::PostgresLease, &url).await;
        for _ in 0..2 {
            let (direct, key) = (direct.clone(), key.clone());
            let (stopped, turns) = (stopped.clone(), turns.clone());
            tasks.spawn(async move {
                while !stopped.load(Ordering::Relaxed) {
                    let lease = direct.acquire(&key, LONG).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    assert!(lease.release().await);
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    }
    until("the others take turns", async || turns.load(Ordering::Relaxed) > 20).await;
    for _ in 0..3 {
        let before = turns.load(Ordering::Relaxed);
        let lease = behind.try_acquire(&key, LONG, LONG).await.unwrap();
        let lease = lease.expect("it gets its turn");
        // It has the key for good, and not only until it would have to confirm its grant.
        let during = turns.load(Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(lease.is_held());
        assert!(turns.load(Ordering::Relaxed) <= during + 1, "the key has one holder");
        assert!(lease.release().await);
        println!("after {} turns of others", during - before);
    }
    stopped.store(true, Ordering::Relaxed);
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}
