//! What only the locks in MongoDB have to show: the queue in the document, and deployments that are
//! rejected.

use std::time::Duration;

use ekbatan::lock::{
    Attempt, Grant, GrantRequest, KeyedLockProvider, LockBackend, LockError, LockKey,
};
use ekbatan_lock_mongodb::MongoDbBackend;
use ekbatan_testkit::FerretDbServer;
use tokio::task::JoinSet;
use uuid::Uuid;

use crate::providers::{Kind, LONG};
use crate::stores::{provider, proxied, url};

async fn backend(namespace: &str) -> MongoDbBackend {
    let url = FerretDbServer::shared().await.unwrap().url();
    MongoDbBackend::connect(&url, namespace).await.unwrap()
}

fn waits() -> GrantRequest {
    GrantRequest::new(Uuid::new_v4(), "a test", LONG).waiting()
}

async fn granted(backend: &MongoDbBackend, key: &str, request: &GrantRequest) -> Grant {
    match backend.try_grant(key, request).await.unwrap() {
        Attempt::Granted(grant) => grant,
        other => panic!("{key}: {other:?}"),
    }
}

#[tokio::test]
async fn acquisitions_get_a_key_in_the_order_in_which_they_came() {
    let backend = backend(&Uuid::new_v4().to_string()).await;
    let queue: Vec<GrantRequest> = (0..5).map(|_| waits()).collect();
    let mut grant = granted(&backend, "k", &queue[0]).await;
    for waiter in &queue[1..] {
        assert_eq!(backend.try_grant("k", waiter).await.unwrap(), Attempt::Queued);
    }
    // One leaves from the middle, and one asks again: its place stays.
    let gone = Grant { owner: queue[2].owner, token: 0 };
    assert!(!backend.release("k", &gone).await.unwrap().ours);
    assert_eq!(backend.try_grant("k", &queue[1]).await.unwrap(), Attempt::Queued);
    for next in [1, 3, 4] {
        assert!(backend.release("k", &grant).await.unwrap().ours);
        let newcomer = GrantRequest::new(Uuid::new_v4(), "a test", LONG);
        let overtakes = backend.try_grant("k", &newcomer).await.unwrap();
        assert_eq!(overtakes, Attempt::Busy(None), "a key that is passed on is not free");
        let owner = backend.inspect("k").await.unwrap().unwrap().owner;
        assert_eq!(owner, Some(queue[next].owner));
        let last = grant.token;
        grant = granted(&backend, "k", &queue[next]).await;
        assert!(grant.token > last);
    }
    assert!(backend.release("k", &grant).await.unwrap().ours);
    assert_eq!(backend.inspect("k").await.unwrap(), None);
}

#[tokio::test]
async fn a_key_whose_term_ends_goes_to_the_first_that_waits() {
    let backend = backend(&Uuid::new_v4().to_string()).await;
    let short = GrantRequest::new(Uuid::new_v4(), "a test", Duration::from_secs(1));
    granted(&backend, "k", &short).await;
    let (first, second) = (waits(), waits());
    for waiter in [&first, &second] {
        assert_eq!(backend.try_grant("k", waiter).await.unwrap(), Attempt::Queued);
    }
    // The second one comes first, and the key is passed on to the other.
    support::until("the term is over", async || {
        backend.inspect("k").await.unwrap().is_none_or(|it| it.owner != Some(short.owner))
    })
    .await;
    assert_eq!(backend.try_grant("k", &second).await.unwrap(), Attempt::Queued);
    granted(&backend, "k", &first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_died_keeps_nobody_waiting_for_long() {
    let namespace = Uuid::new_v4().to_string();
    let url = url(Kind::MongoDb).await;
    let holder = provider(Kind::MongoDb, &url, &namespace).await;
    let key = LockKey::named("k");
    let held = holder.acquire(&key, LONG).await.unwrap();
    let dead = backend(&namespace).await;
    // It waits, and gives no sign of life. When the key is passed on to it, it does not confirm.
    let answer = dead.try_grant(&held.key().stored("test"), &waits()).await.unwrap();
    assert_eq!(answer, Attempt::Queued);
    let mut waiters = JoinSet::new();
    for _ in 0..2 {
        let (locks, key) = (provider(Kind::MongoDb, &url, &namespace).await, key.clone());
        waiters.spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await });
    }
    assert!(held.release().await);
    while let Some(released) = waiters.join_next().await {
        assert!(released.unwrap());
    }
}

async fn refused(url: &str, namespace: &str) -> String {
    match MongoDbBackend::connect(url, namespace).await {
        Err(error @ (LockError::Start { .. } | LockError::Unsafe { .. })) => {
            let text = format!("{error} {error:?}");
            assert!(!text.contains("secret"), "{text}");
            error.to_string()
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn addresses_and_namespaces_that_are_not_safe_are_rejected() {
    let url = FerretDbServer::shared().await.unwrap().url();
    for (parameter, said) in [
        ("w=1", "remove `w`"),
        ("journal=false", "remove `journal`"),
        ("readPreference=nearest", "remove `readPreference`"),
    ] {
        let reason = refused(&format!("{url}?{parameter}"), "locks").await;
        assert!(reason.contains(said), "{reason}");
    }
    let reason = refused(&url, "a$b").await;
    assert!(reason.contains("`a$b`"), "{reason}");
    let same = MongoDbBackend::connect(&format!("{url}?w=majority&journal=true"), "locks").await;
    assert!(same.is_ok(), "{same:?}");
}

#[tokio::test]
async fn a_login_that_is_cut_off_is_rejected_without_its_password() {
    let server = FerretDbServer::shared().await.unwrap();
    let port = server.port();
    for url in [
        "mongodb://app:secret".to_owned(),
        format!("mongodb://app:secret@x@127.0.0.1:{port}/d"),
        format!("mongodb://app:secret/x@127.0.0.1:{port}/d"),
    ] {
        let reason = refused(&url, "locks").await;
        assert!(reason.contains("percent-encode"), "{reason}");
    }
}

/// The check of locks passes a key on for a moment, which is over before a slow answer comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_becomes_slow_is_not_called_unsafe() {
    let slow = (2..14).map(async |trips| {
        let (url, proxy) = proxied(Kind::MongoDb).await;
        let namespace = Uuid::new_v4().to_string();
        let slows_down = async {
            while proxy.round_trips() < trips {
                tokio::task::yield_now().await;
            }
            // A round trip takes longer than the key is passed on for, and not too long for an answer.
            proxy.set_delay(Duration::from_millis(1_200));
            std::future::pending().await
        };
        tokio::select! {
            opened = MongoDbBackend::connect(&url, &namespace) => opened.map(drop),
            () = slows_down => unreachable!("it waits for ever"),
        }
    });
    for opened in futures_util::future::join_all(slow).await {
        assert!(matches!(opened, Ok(()) | Err(LockError::Start { .. })), "{opened:?}");
    }
}

#[tokio::test]
async fn the_error_for_a_missing_server_names_it_and_hides_the_password() {
    let server = FerretDbServer::start().await.unwrap();
    let port = server.port();
    server.stop().await.unwrap();
    let reason = refused(&format!("mongodb://app:secret@127.0.0.1:{port}/d"), "locks").await;
    assert!(reason.contains(&format!("127.0.0.1:{port}")), "{reason}");
}
