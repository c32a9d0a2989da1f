//! Ownership: only the owner releases or extends a key, and an abandoned try takes none.

use std::time::Duration;

use ekbatan::lock::{Attempt, Grant, KeyedLockProvider, LockBackend, LockKey, Released};
use ekbatan_testkit::{Dropped, drop_at_poll};
use support::until;
use uuid::Uuid;

use super::{Space, asked, connection, request, taken};
use crate::providers::LONG;

const NOT_OURS: Released = Released { ours: false, wanted: false };

#[tokio::test]
async fn only_the_owner_extends_and_releases() {
    let space = Space::shared().await;
    let (one, other) = (space.backend().await, space.backend().await);
    let grant = taken(&one, "k", LONG).await;
    let stranger = Grant { owner: Uuid::new_v4(), ..grant };
    assert_eq!(other.release("k", &stranger).await.unwrap(), NOT_OURS);
    assert!(!other.extend("k", &stranger, LONG * 2).await.unwrap());
    let holder = one.inspect("k").await.unwrap().unwrap();
    assert_eq!((&*holder.holder, holder.token), ("a | test", grant.token));
    assert!(holder.remaining.unwrap() <= LONG && holder.held.unwrap() < LONG);
    assert!(one.extend("k", &grant, LONG * 2).await.unwrap());
    assert!(one.inspect("k").await.unwrap().unwrap().remaining.unwrap() > LONG);
    assert!(one.release("k", &grant).await.unwrap().ours);
    assert_eq!(one.release("k", &grant).await.unwrap(), NOT_OURS);
    assert!(!one.extend("k", &grant, LONG).await.unwrap(), "a free key is not taken by extending");
    assert_eq!(space.stored().await, Vec::<String>::new());
}

#[tokio::test]
async fn an_expired_lease_does_not_release_its_successor() {
    let space = Space::shared().await;
    let (one, other) = (space.locks().await, space.locks().await);
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
    assert_eq!(space.stored().await.len(), 1);
    assert!(successor.release().await, "nobody else has released it");
}

#[tokio::test]
async fn a_term_below_a_millisecond_expires_and_blocks_nobody() {
    let space = Space::shared().await;
    let (one, other) = (space.backend().await, space.backend().await);
    for (key, term) in [("k", Duration::from_nanos(1)), ("l", Duration::from_micros(999))] {
        taken(&one, key, term).await;
        let next = request(LONG);
        while let Attempt::Busy(left) = other.try_grant(key, &next).await.unwrap() {
            assert!(left.is_none_or(|left| left <= Duration::from_millis(1)), "{left:?}");
        }
    }
    let (one, other) = (space.locks().await, space.locks().await);
    let key = LockKey::named("another");
    let lease = one.try_acquire(&key, LONG, Duration::from_micros(10)).await.unwrap();
    let successor = other.try_acquire(&key, LONG, LONG).await.unwrap();
    assert!(!lease.unwrap().is_held() && successor.unwrap().is_held());
}

#[tokio::test]
async fn an_abandoned_try_that_arrives_late_takes_nothing() {
    let space = Space::shared().await;
    let backend = space.backend().await;
    let late = request(LONG);
    let unheard = Grant { owner: late.owner, token: 0 };
    assert_eq!(backend.release("k", &unheard).await.unwrap(), NOT_OURS);
    assert_eq!(backend.try_grant("k", &late).await.unwrap(), Attempt::Busy(None));
    assert_eq!(space.stored().await, Vec::<String>::new());
    taken(&backend, "k", LONG).await;
}

#[tokio::test]
async fn a_try_that_is_sent_twice_is_granted_once() {
    let space = Space::shared().await;
    let backend = space.backend().await;
    let request = request(LONG);
    let first = backend.try_grant("k", &request).await.unwrap();
    assert!(matches!(first, Attempt::Granted(_)), "{first:?}");
    assert_eq!(backend.try_grant("k", &request).await.unwrap(), first);
}

#[tokio::test]
async fn a_try_dropped_at_any_poll_can_be_released_by_its_owner() {
    let space = Space::shared().await;
    let backend = space.backend().await;
    let mut server = connection(&space.url).await;
    for poll in 0..200 {
        // A try takes the most round trips when its script is not cached.
        let () = asked(&mut server, &["SCRIPT", "FLUSH"]).await;
        let request = request(LONG);
        let tried = drop_at_poll(poll, backend.try_grant("k", &request)).await;
        let unheard = Grant { owner: request.owner, token: 0 };
        backend.release("k", &unheard).await.unwrap();
        assert_eq!(backend.inspect("k").await.unwrap(), None, "after {poll} polls");
        if let Dropped::Finished(tried) = tried {
            // The number of polls depends on the sockets; at least one poll waits.
            assert!(poll > 0 && matches!(tried.unwrap(), Attempt::Granted(_)), "{poll} polls");
            return;
        }
    }
    panic!("a try is over at some time");
}

#[tokio::test]
async fn a_caller_dropped_at_any_poll_leaves_no_key_held() {
    let space = Space::shared().await;
    let (one, other) = (space.locks().await, space.locks().await);
    let key = LockKey::named("k");
    for poll in 0..200 {
        let held = other.try_acquire(&key, LONG, LONG).await.unwrap().unwrap();
        let waiting = drop_at_poll(poll, async {
            one.try_acquire(&key, LONG, LONG).await.unwrap().unwrap().release().await
        });
        let releasing = async {
            tokio::task::yield_now().await;
            held.release().await
        };
        let (dropped, released) = tokio::join!(waiting, releasing);
        assert!(released);
        if matches!(dropped, Dropped::Finished(_)) {
            break;
        }
    }
    one.close().await;
    other.close().await;
    assert_eq!(space.stored().await, Vec::<String>::new());
}

#[tokio::test]
async fn the_last_token_of_an_unused_key_is_kept_for_a_day() {
    let space = Space::shared().await;
    let backend = space.backend().await;
    let mut server = connection(&space.url).await;
    let fence = format!("{}:fence:{{k}}", space.namespace);
    let day = 86_400_000;
    let first = taken(&backend, "k", LONG).await;
    assert!(backend.release("k", &first).await.unwrap().ours);
    let kept: i64 = asked(&mut server, &["PTTL", &fence]).await;
    assert!((day - 60_000..=day).contains(&kept), "{kept}");
    // Ahead of the clock, because the clock was set back.
    let _: i64 = asked(&mut server, &["INCRBY", &fence, &day.to_string()]).await;
    let ahead = taken(&backend, "k", LONG).await;
    let kept: i64 = asked(&mut server, &["PTTL", &fence]).await;
    assert!(ahead.token > first.token + day && kept > 2 * day - 60_000, "{kept}");
    assert!(backend.force_release("k", &ahead, "a test").await.unwrap());
    let kept: i64 = asked(&mut server, &["PTTL", &fence]).await;
    assert!(kept > 2 * day - 60_000, "{kept}");
    // Nobody has used it for a day.
    let first = taken(&backend, "l", LONG).await;
    assert!(backend.release("l", &first).await.unwrap().ours);
    let _: i64 = asked(&mut server, &["DEL", &fence.replace("{k}", "{l}")]).await;
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert!(taken(&backend, "l", LONG).await.token > first.token);
}

/// The poller looks once a second, so a caller that waits for a shorter time relies on the answer.
#[tokio::test]
async fn a_key_that_is_free_within_a_second_says_when() {
    let space = Space::shared().await;
    let (one, other) = (space.backend().await, space.backend().await);
    let short = Duration::from_millis(500);
    let left = loop {
        // On a busy machine the term may end first.
        taken(&one, "short", short).await;
        if let Attempt::Busy(left) = other.try_grant("short", &request(short)).await.unwrap() {
            break left;
        }
        until("it is free again", async || one.inspect("short").await.unwrap().is_none()).await;
    };
    assert!(left.is_some_and(|left| left <= short), "{left:?}");
    taken(&one, "long", LONG).await;
    assert_eq!(other.try_grant("long", &request(LONG)).await.unwrap(), Attempt::Busy(None));
}
