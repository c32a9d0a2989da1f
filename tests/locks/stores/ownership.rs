//! Only the owner releases or extends a key, force ends what was seen, and what was given up
//! takes nothing later.

use std::time::{Duration, Instant};

use ekbatan::lock::{
    Attempt, FailureKind, Grant, GrantExtension, GrantRequest, KeyedLockProvider, LockBackend,
    LockKey,
};
use ekbatan_testkit::{Dropped, drop_at_poll};
use support::until;
use uuid::Uuid;

use crate::providers::{Kind, LONG};
use crate::stores::{backend, provider, url};

on_providers! {
    |kind| kind;
    [; stores]
    only_the_owner_extends_and_releases,
    an_expired_lease_does_not_release_its_successor,
    what_is_over_is_not_brought_back,
    the_longest_and_the_shortest_terms_are_taken,
    a_try_that_is_sent_twice_is_granted_once,
    a_try_dropped_at_any_poll_can_be_released_by_its_owner,
    many_tries_at_once_have_one_winner,
    terms_below_a_second_are_kept,
}

#[cfg(any(feature = "mongodb", feature = "aerospike"))]
mod late {
    use super::an_abandoned_try_that_arrives_late_takes_nothing;

    // In HBase the request that was sent finds another state, so a late one is sent on the wire: see
    // `a_request_that_arrives_after_it_was_given_up_has_no_effect`.
    #[cfg(feature = "mongodb")]
    on_providers! { |kind| kind; [mongodb] an_abandoned_try_that_arrives_late_takes_nothing }
    #[cfg(feature = "aerospike")]
    on_providers! { |kind| kind; [aerospike] an_abandoned_try_that_arrives_late_takes_nothing }
}

fn request(term: Duration) -> GrantRequest {
    GrantRequest::new(Uuid::new_v4(), "a | test", term)
}

async fn taken(backend: &dyn LockBackend, key: &str, term: Duration) -> Grant {
    match backend.try_grant(key, &request(term)).await.unwrap() {
        Attempt::Granted(grant) => grant,
        busy => panic!("{key} is not free: {busy:?}"),
    }
}

async fn two(kind: Kind) -> (Box<dyn LockBackend>, Box<dyn LockBackend>) {
    let (url, namespace) = (url(kind).await, Uuid::new_v4().to_string());
    (backend(kind, &url, &namespace).await, backend(kind, &url, &namespace).await)
}

async fn only_the_owner_extends_and_releases(kind: Kind) {
    let (one, other) = two(kind).await;
    let grant = taken(&*one, "k", LONG).await;
    for stranger in [
        Grant { owner: Uuid::new_v4(), ..grant },
        Grant { token: grant.token + 1, ..grant },
        Grant { token: grant.token - 1, ..grant },
    ] {
        assert!(!other.release("k", &stranger).await.unwrap().ours);
        assert!(!other.extend("k", &stranger, LONG * 2).await.unwrap());
        assert!(!other.force_release("k", &stranger, "a test").await.unwrap());
    }
    let holder = one.inspect("k").await.unwrap().unwrap();
    assert_eq!((&*holder.holder, holder.grant()), ("a | test", grant));
    assert!(holder.remaining.unwrap() <= LONG && holder.held.unwrap() < LONG);
    assert!(other.extend("k", &grant, LONG * 2).await.unwrap());
    let holder = one.inspect("k").await.unwrap().unwrap();
    assert!(holder.remaining.unwrap() > LONG && holder.grant() == grant, "the token stays");
    assert!(one.release("k", &grant).await.unwrap().ours);
    assert!(!one.release("k", &grant).await.unwrap().ours);
    assert!(!one.extend("k", &grant, LONG).await.unwrap(), "a free key is not taken by extending");
    assert_eq!(one.inspect("k").await.unwrap(), None);
}

async fn an_expired_lease_does_not_release_its_successor(kind: Kind) {
    let (url, namespace) = (url(kind).await, Uuid::new_v4().to_string());
    let one = provider(kind, &url, &namespace).await;
    let other = provider(kind, &url, &namespace).await;
    let key = LockKey::named("k");
    let short = Duration::from_millis(100);
    let late = one.try_acquire(&key, LONG, short).await.unwrap().unwrap();
    let successor = other.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
    assert!(successor.token() > late.token());
    late.lost().await;
    assert!(!late.release().await);
    drop(late);
    // The first process has sent all its releases.
    one.close().await;
    assert!(other.inspect(&key).await.unwrap().is_some());
    assert!(successor.release().await, "nobody else has released it");
}

/// Although nobody has taken the key since.
async fn what_is_over_is_not_brought_back(kind: Kind) {
    let (one, _) = two(kind).await;
    let (over, stands) = ("over", "stands");
    let grant = taken(&*one, over, Duration::from_secs(1)).await;
    let standing = taken(&*one, stands, LONG).await;
    until("the lease has expired", async || one.inspect(over).await.unwrap().is_none()).await;
    assert!(!one.extend(over, &grant, LONG).await.unwrap());
    let both = [(over, grant), (stands, standing)]
        .map(|(key, grant)| GrantExtension::new(key, grant, LONG * 2));
    assert_eq!(one.extend_all(&both).await.unwrap(), [false, true]);
    assert!(!one.release(over, &grant).await.unwrap().ours);
    assert!(!one.force_release(over, &grant, "a test").await.unwrap());
    assert_eq!(one.inspect(over).await.unwrap(), None);
    assert!(one.inspect(stands).await.unwrap().unwrap().remaining.unwrap() > LONG);
}

async fn the_longest_and_the_shortest_terms_are_taken(kind: Kind) {
    let (url, namespace) = (url(kind).await, Uuid::new_v4().to_string());
    let one = provider(kind, &url, &namespace).await;
    let other = provider(kind, &url, &namespace).await;
    for hold in [Duration::from_nanos(1), Duration::MAX] {
        let key = LockKey::named(&format!("{hold:?}"));
        let lease = one.try_acquire(&key, LONG, hold).await.unwrap().unwrap();
        if hold == Duration::MAX {
            assert!(lease.is_held());
            let there = other.inspect(&key).await.unwrap().unwrap().remaining.unwrap();
            assert!(there > Duration::from_secs(86_400 * 365), "{there:?}");
            assert!(lease.release().await);
        }
        assert!(other.try_acquire(&key, LONG, LONG).await.unwrap().unwrap().release().await);
    }
}

#[cfg(any(feature = "mongodb", feature = "aerospike"))]
async fn an_abandoned_try_that_arrives_late_takes_nothing(kind: Kind) {
    let (one, other) = two(kind).await;
    // A key of which there is nothing yet, and one that is free.
    let before = taken(&*one, "used", LONG).await;
    assert!(one.release("used", &before).await.unwrap().ours);
    for key in ["new", "used"] {
        let late: Vec<GrantRequest> = (0..5).map(|_| request(LONG).waiting()).collect();
        for late in &late {
            let unheard = Grant { owner: late.owner, token: 0 };
            assert!(!one.release(key, &unheard).await.unwrap().ours);
        }
        for late in &late {
            let answer = one.try_grant(key, late).await.unwrap();
            assert!(!matches!(answer, Attempt::Granted(_)), "{answer:?}");
        }
        assert_eq!(one.inspect(key).await.unwrap(), None);
        let grant = taken(&*other, key, LONG).await;
        assert!(other.release(key, &grant).await.unwrap().ours);
    }
}

async fn a_try_that_is_sent_twice_is_granted_once(kind: Kind) {
    let (one, _) = two(kind).await;
    let request = request(LONG);
    let first = one.try_grant("k", &request).await.unwrap();
    assert!(matches!(first, Attempt::Granted(_)), "{first:?}");
    assert_eq!(one.try_grant("k", &request).await.unwrap(), first);
}

async fn a_try_dropped_at_any_poll_can_be_released_by_its_owner(kind: Kind) {
    let (one, other) = two(kind).await;
    for poll in 0..200 {
        let key = format!("k {poll}");
        let request = request(LONG);
        let tried = drop_at_poll(poll, one.try_grant(&key, &request)).await;
        let unheard = Grant { owner: request.owner, token: 0 };
        one.release(&key, &unheard).await.unwrap();
        assert_eq!(other.inspect(&key).await.unwrap(), None, "after {poll} polls");
        // If the try is still on its way, it is refused when it arrives.
        let next = taken(&*other, &key, LONG).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(other.inspect(&key).await.unwrap().unwrap().grant(), next);
        if let Dropped::Finished(tried) = tried {
            assert!(poll > 0 && matches!(tried.unwrap(), Attempt::Granted(_)), "{poll} polls");
            return;
        }
    }
    panic!("a try is over at some time");
}

/// Of a key that is new to the server, and of one that it knows.
async fn many_tries_at_once_have_one_winner(kind: Kind) {
    let (one, other) = two(kind).await;
    for round in 0..30 {
        let key = format!("race {}", round / 2);
        let tries = (0..8).map(|n| {
            let (backend, key) = (if n % 2 == 0 { &one } else { &other }, &key);
            async move { backend.try_grant(key, &request(LONG)).await.unwrap() }
        });
        let answers = futures_util::future::join_all(tries).await;
        let granted: Vec<Grant> = answers
            .iter()
            .filter_map(|answer| match answer {
                Attempt::Granted(grant) => Some(*grant),
                _ => None,
            })
            .collect();
        assert_eq!(granted.len(), 1, "{key}: {answers:?}");
        assert!(one.release(&key, &granted[0]).await.unwrap().ours);
    }
}

/// Terms are milliseconds, whatever the server's own records count in.
async fn terms_below_a_second_are_kept(kind: Kind) {
    let (one, other) = two(kind).await;
    for millis in [1, 150, 450] {
        let term = Duration::from_millis(millis);
        let (key, asked) = (format!("{millis} ms"), Instant::now());
        match one.try_grant(&key, &request(term)).await {
            Ok(Attempt::Granted(_)) => {}
            // HBase looks at what it has granted, and that was over already.
            Err(error) if error.kind() == FailureKind::InDoubt => {}
            other => panic!("{key} is not free: {other:?}"),
        }
        let next = request(LONG);
        while !matches!(other.try_grant(&key, &next).await.unwrap(), Attempt::Granted(_)) {
            let rest = other.inspect(&key).await.unwrap().and_then(|holder| holder.remaining);
            assert!(rest.is_none_or(|rest| rest <= term || rest > LONG / 2), "{rest:?}");
        }
        // The server's clock has whole milliseconds.
        let after = asked.elapsed() + Duration::from_millis(1);
        assert!(after >= term, "a term of {term:?} was over after {after:?}");
    }
}
