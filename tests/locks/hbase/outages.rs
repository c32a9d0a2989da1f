//! A server that goes down, a connection that breaks or goes silent, and regions that move.

use std::time::{Duration, Instant};

use ekbatan::lock::{
    Attempt, BackendError, Grant, HBaseBackend, KeyedLockProvider, LockBackend, LockError, LockKey,
    LockProvider,
};
use ekbatan_testkit::HBaseServer;
use uuid::Uuid;

use super::{backend, request, taken};
use crate::providers::LONG;

/// Longer than a restart takes.
const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_granted_outlives_a_crash_and_tokens_go_on() {
    let server = HBaseServer::start().await.unwrap();
    let connect = async || HBaseBackend::connect(&server.url(), "app").await.unwrap();
    let (locks, other) = (connect().await, LockProvider::new(connect().await, "test"));
    let locks = LockProvider::new(locks, "test");
    let (held, wanted) = (LockKey::named("held"), LockKey::named("wanted"));
    let lease = locks.try_acquire(&held, LONG, HOUR).await.unwrap().unwrap();
    let last = {
        let lease = locks.try_acquire(&wanted, LONG, HOUR).await.unwrap().unwrap();
        let token = lease.token();
        assert!(lease.release().await);
        token
    };
    // A caller that waits is not disturbed.
    let waiting = tokio::spawn({
        let (other, held) = (other.clone(), held.clone());
        async move { other.acquire(&held, LONG).await.unwrap().release().await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.kill().await.unwrap();
    let error = locks.try_acquire(&wanted, Duration::ZERO, LONG).await.unwrap_err();
    // In doubt if the request was on its way when the server was killed.
    let is_unknown = matches!(error, LockError::Unavailable { .. } | LockError::InDoubt { .. });
    assert!(is_unknown, "{error}");
    assert!(error.to_string().contains("HBase at "), "{error}");
    server.restart().await.unwrap();
    let still = other.try_acquire(&held, Duration::from_secs(20), LONG).await.unwrap();
    assert!(still.is_none(), "the crash has forgotten a grant");
    let next = locks.try_acquire(&wanted, LONG, LONG).await.unwrap().unwrap();
    assert!(next.token() > last, "{} after {last}", next.token());
    assert!(next.release().await);
    assert!(lease.is_held() && lease.release().await);
    assert!(waiting.await.unwrap());
    server.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_was_split_or_reopened_is_found_again() {
    let server = HBaseServer::shared().await.unwrap();
    let table = format!("moved_{}", Uuid::new_v4().simple());
    let url = format!("{}/{table}", server.url());
    let (one, other) = (
        HBaseBackend::connect(&url, "app").await.unwrap(),
        HBaseBackend::connect(&url, "app").await.unwrap(),
    );
    let keys = ["a", "m", "z"];
    let mut held = Vec::new();
    for key in keys {
        held.push((key, taken(&one, key, HOUR).await));
    }
    server.split_table(&table, "app/m").await.unwrap();
    // The split takes a moment, in which requests wait or fail without an effect.
    support::until("both halves are listed", async || {
        let listed = other.list(&[String::new()], 10).await;
        listed.is_ok_and(|listed| listed.len() == keys.len()) && server.rows(&table).await.is_ok()
    })
    .await;
    for (key, grant) in &held {
        assert!(extended(&one, key, grant).await, "{key}");
        let tried = tried(&other, key).await;
        assert!(matches!(tried, Attempt::Busy(_)), "{tried:?}");
    }
    server.enable_table(&table, false).await.unwrap();
    support::until("the table is disabled", async || {
        server.enable_table(&table, true).await.is_ok()
    })
    .await;
    for (key, grant) in held {
        assert!(extended(&one, key, &grant).await, "{key}");
        assert!(one.release(key, &grant).await.unwrap().ours);
    }
}

/// The answer as soon as the region is open.
async fn answered<T>(ask: impl AsyncFn() -> Result<T, BackendError>) -> T {
    let begun = Instant::now();
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(error.may_pass() && begun.elapsed() < LONG, "{error}"),
        }
    }
}

async fn extended(backend: &HBaseBackend, key: &str, grant: &Grant) -> bool {
    answered(async || backend.extend(key, grant, HOUR).await).await
}

async fn tried(backend: &HBaseBackend, key: &str) -> Attempt {
    // The same request, which may have been granted although its answer is not known.
    let request = request(LONG);
    answered(async || backend.try_grant(key, &request).await).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_that_moves_to_another_server_is_followed() {
    let server = HBaseServer::builder().region_servers(2).start().await.unwrap();
    let url = format!("{}/moved", server.url());
    let one = HBaseBackend::connect(&url, "app").await.unwrap();
    let other = HBaseBackend::connect(&url, "app").await.unwrap();
    let grant = taken(&one, "held", HOUR).await;
    let mut last = 0;
    for _ in 0..4 {
        server.move_table("moved").await.unwrap();
        assert!(extended(&one, "held", &grant).await);
        let busy = tried(&other, "held").await;
        assert!(matches!(busy, Attempt::Busy(_)), "{busy:?}");
        let Attempt::Granted(next) = tried(&other, "k").await else { panic!("it is free") };
        assert!(next.token > last);
        last = next.token;
        assert!(other.release("k", &next).await.unwrap().ours);
    }
    // A process that waits is served although the region moves meanwhile.
    let waiting = LockProvider::new(other, "test");
    let (key, stored) = (LockKey::named("waited for"), LockKey::named("waited for").stored("test"));
    let held = taken(&one, &stored, HOUR).await;
    let served =
        tokio::spawn(async move { waiting.acquire(&key, LONG).await.unwrap().release().await });
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.move_table("moved").await.unwrap();
    answered(async || one.release(&stored, &held).await).await;
    assert!(served.await.unwrap());
    assert!(one.release("held", &grant).await.unwrap().ours);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_that_is_gone_is_refused_by_name() {
    let server = HBaseServer::shared().await.unwrap();
    let table = format!("gone_{}", Uuid::new_v4().simple());
    let url = format!("{}/{table}", server.url());
    let backend = HBaseBackend::connect(&url, "app").await.unwrap();
    let grant = taken(&backend, "k", HOUR).await;
    server.enable_table(&table, false).await.unwrap();
    support::until("the table is gone", async || server.delete_table(&table).await.is_ok()).await;
    let begun = Instant::now();
    let error = loop {
        match backend.extend("k", &grant, LONG).await {
            Err(error) if !error.may_pass() => break error,
            Err(error) => assert!(begun.elapsed() < LONG, "{error}"),
            Ok(extended) => panic!("{extended}"),
        }
    };
    assert!(error.to_string().contains(&format!("`{table}` is gone")), "{error}");
    // A process that starts makes it again.
    let next = HBaseBackend::connect(&url, "app").await.unwrap();
    let again = taken(&next, "k", HOUR).await;
    assert!(again.token > grant.token, "{again:?} after {grant:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_connection_is_replaced_without_an_error() {
    let (proxy, url) = HBaseServer::shared().await.unwrap().behind_proxy().await.unwrap();
    let backend = HBaseBackend::connect(&url, &Uuid::new_v4().to_string()).await.unwrap();
    for _ in 0..5 {
        let grant = taken(&backend, "k", LONG).await;
        proxy.cut();
        proxy.restore();
        assert!(backend.extend("k", &grant, LONG).await.unwrap());
        proxy.cut();
        proxy.restore();
        assert!(backend.release("k", &grant).await.unwrap().ours);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_is_given_up_and_its_request_undone() {
    let namespace = Uuid::new_v4().to_string();
    let (proxy, url) = HBaseServer::shared().await.unwrap().behind_proxy().await.unwrap();
    let backend = HBaseBackend::connect(&url, &namespace).await.unwrap();
    let before = taken(&backend, "before", LONG).await;
    proxy.stall();
    let tried = request(LONG);
    let error = backend.try_grant("k", &tried).await.unwrap_err();
    assert!(error.to_string().contains("did not answer within 5s"), "{error}");
    assert!(error.may_pass());
    // The abandoned request arrives now, before or after the next one.
    proxy.resume();
    let unheard = Grant { owner: tried.owner, token: 0 };
    backend.release("k", &unheard).await.unwrap();
    assert_eq!(backend.inspect("k").await.unwrap(), None);
    assert!(backend.release("before", &before).await.unwrap().ours);
    support::until("one connection is left", async || proxy.connections() == 1).await;
    assert_eq!(super::backend(&namespace).await.inspect("k").await.unwrap(), None);
}

/// The answer to each request of a take, an extension and a release is lost in turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_answer_at_any_step_loses_no_key() {
    let namespace = Uuid::new_v4().to_string();
    let (proxy, url) = HBaseServer::shared().await.unwrap().behind_proxy().await.unwrap();
    let behind = HBaseBackend::connect(&url, &namespace).await.unwrap();
    let other = backend(&namespace).await;
    // The request passes at once, and its answer comes after this time, when nobody hears it.
    let late = Duration::from_millis(30);
    for step in ["take", "extend", "release"] {
        for round in 0..5 {
            let key = format!("{step} {round}");
            let wanted = request(HOUR);
            let cut = async {
                proxy.set_delay(late);
                // More than one way, and less than both.
                tokio::time::sleep(late + late / 2).await;
                proxy.cut();
                proxy.set_delay(Duration::ZERO);
                proxy.restore();
            };
            let grant = if step == "take" {
                let (granted, ()) = tokio::join!(behind.try_grant(&key, &wanted), cut);
                match granted.unwrap() {
                    Attempt::Granted(grant) => grant,
                    other => panic!("{other:?}"),
                }
            } else {
                let grant = taken(&behind, &key, HOUR).await;
                if step == "extend" {
                    let (extended, ()) = tokio::join!(behind.extend(&key, &grant, HOUR), cut);
                    assert!(extended.unwrap());
                } else {
                    let (released, ()) = tokio::join!(behind.release(&key, &grant), cut);
                    assert!(released.unwrap().ours);
                    let next = taken(&other, &key, HOUR).await;
                    assert!(next.token > grant.token);
                    continue;
                }
                grant
            };
            assert_eq!(other.inspect(&key).await.unwrap().unwrap().grant(), grant);
            assert!(behind.release(&key, &grant).await.unwrap().ours);
        }
    }
}
