//! Only the owner releases or extends a key, force ends what was seen, and what was given up
//! leaves nothing behind.

use std::time::Duration;

use ekbatan::lock::{Attempt, Grant, KeyedLockProvider, LockBackend, LockKey, LossCause, Released};
use ekbatan_testkit::{Dropped, drop_at_poll};
use uuid::Uuid;

use super::{Space, request, taken};
use crate::providers::LONG;

const NOT_OURS: Released = Released { ours: false, wanted: false };

#[tokio::test]
async fn only_the_owner_extends_and_releases() {
    let space = Space::shared().await;
    let (one, other) = (space.backend().await, space.backend().await);
    let grant = taken(&one, "k", LONG).await;
    for stranger in [
        Grant { owner: Uuid::new_v4(), ..grant },
        Grant { token: grant.token + 1, ..grant },
        Grant { token: grant.token - 1, ..grant },
    ] {
        assert_eq!(other.release("k", &stranger).await.unwrap(), NOT_OURS);
        assert!(!other.extend("k", &stranger, LONG * 2).await.unwrap());
        assert!(!other.force_release("k", &stranger, "a test").await.unwrap());
    }
    let holder = one.inspect("k").await.unwrap().unwrap();
    assert_eq!((&*holder.holder, holder.grant()), ("a | test", grant));
    assert!(holder.remaining.unwrap() <= LONG);
    for _ in 0..3 {
        assert!(other.extend("k", &grant, LONG * 2).await.unwrap());
        let holder = one.inspect("k").await.unwrap().unwrap();
        assert!(holder.remaining.unwrap() > LONG);
        assert_eq!(holder.grant(), grant, "the token stays");
    }
    assert!(one.release("k", &grant).await.unwrap().ours);
    assert_eq!(one.release("k", &grant).await.unwrap(), NOT_OURS);
    assert!(!one.extend("k", &grant, LONG).await.unwrap(), "a free key is not taken by extending");
    assert_eq!(space.places().await, Vec::<String>::new());
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
    assert_eq!(space.places().await.len(), 1);
    assert!(successor.release().await, "nobody else has released it");
}

#[tokio::test]
async fn the_longest_and_the_shortest_terms_are_taken() {
    let space = Space::shared().await;
    let (one, other) = (space.locks().await, space.locks().await);
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

#[tokio::test]
async fn keys_with_slashes_are_keys_of_their_own() {
    let space = Space::shared().await;
    let backend = space.backend().await;
    let keys = ["DC#test#a", "DC#test#a/b", "DC#test#a/", "DC#test#a%2Fb", "DC#test#%", "epoch"];
    let mut grants = Vec::new();
    for key in keys {
        grants.push((key, taken(&backend, key, LONG).await));
    }
    let listed = backend.list(&["DC#test#".to_owned()], 10).await.unwrap();
    let mut names: Vec<_> = listed.iter().map(|(key, _)| key.as_str()).collect();
    names.sort_unstable();
    let mut expected = keys[..5].to_vec();
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert_eq!(backend.list(&["DC#test#a/".to_owned()], 10).await.unwrap().len(), 2);
    assert_eq!(backend.list(&["DC#test#".to_owned()], 3).await.unwrap().len(), 3);
    for (key, grant) in grants {
        assert!(backend.release(key, &grant).await.unwrap().ours);
    }
}

#[tokio::test]
async fn a_holder_learns_that_its_lease_was_ended_by_force_elsewhere() {
    let space = Space::shared().await;
    let (one, other) = (space.locks().await, space.locks().await);
    let key = LockKey::named("k");
    let lease = one.acquire(&key, LONG).await.unwrap();
    assert!(other.force_release(&key, "a test").await.unwrap());
    let lost = lease.lost().await;
    assert!(matches!(&lost, LossCause::SessionGone(why) if why.contains("etcd")), "{lost:?}");
    assert!(!lease.is_held() && !lease.release().await);
    assert!(!other.force_release(&key, "a test").await.unwrap());
}

#[tokio::test]
async fn a_try_that_is_sent_twice_is_granted_once() {
    let space = Space::shared().await;
    let backend = space.backend().await;
    let request = request(LONG);
    let first = backend.try_grant("k", &request).await.unwrap();
    assert!(matches!(first, Attempt::Granted(_)), "{first:?}");
    assert_eq!(backend.try_grant("k", &request).await.unwrap(), first);
    assert_eq!(space.places().await.len(), 1);
}

#[tokio::test]
async fn a_try_dropped_at_any_poll_can_be_released_by_its_owner() {
    let space = Space::shared().await;
    let (backend, other) = (space.backend().await, space.backend().await);
    let held = taken(&other, "busy", LONG).await;
    for key in ["free", "busy"] {
        for poll in 0.. {
            let request = request(LONG).waiting();
            let tried = drop_at_poll(poll, backend.try_grant(key, &request)).await;
            let unheard = Grant { owner: request.owner, token: 0 };
            backend.release(key, &unheard).await.unwrap();
            let places = space.places().await;
            let owner = request.owner.to_string();
            assert!(!places.iter().any(|place| place.ends_with(&owner)), "after {poll} polls");
            if let Dropped::Finished(tried) = tried {
                // The number of polls depends on the sockets; at least one poll waits.
                assert!(poll > 0, "{tried:?}");
                break;
            }
        }
    }
    assert!(other.release("busy", &held).await.unwrap().ours);
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
    space.until_places(0).await;
}
