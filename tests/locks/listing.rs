//! Listing the keys that are held.

use std::time::Duration;

use ekbatan::lock::{HeldKeys, KeyedLockProvider, LockError, LockKey, LockLevel};
use support::until;

use crate::providers::{Kind, LONG, TestLocks};

on_every_provider! {
    keys_are_listed_with_their_holders,
    a_listed_key_can_be_ended_by_force,
    more_keys_than_were_asked_for_are_reported,
    a_lease_that_is_over_is_not_listed,
    keys_of_any_length_and_level_are_listed,
}

/// The keys that are held, or `None` if the server does not know its keys.
async fn listed(t: &TestLocks, most: usize) -> Option<HeldKeys> {
    match (t.locks.list(most).await, t.kind()) {
        (Err(error @ LockError::List { .. }), Kind::PostgresSession) => {
            let text = error.to_string();
            assert!(text.starts_with("the locks could not be listed: session locks in"), "{text}");
            assert!(text.contains("`strategy: lease`"), "it names the way out: {text}");
            None
        }
        (listed, _) => Some(listed.unwrap()),
    }
}

fn names(listed: &HeldKeys) -> Vec<&str> {
    listed.keys.iter().map(|held| held.key.id()).collect()
}

async fn keys_are_listed_with_their_holders(t: &TestLocks) {
    assert!(listed(t, 10).await.is_none_or(|listed| listed == HeldKeys::default()));
    let other = t.other_node().await;
    let [a, b, c] = ["wallet:1", "wallet:2", "wallet:3"].map(LockKey::named);
    let (_second, _first) = (t.hold(&b).await, t.hold(&a).await);
    let _third = other.try_acquire(&c, LONG, LONG).await.unwrap().unwrap();
    let (locks, of_task) = (t.locks.clone(), a.clone());
    let waiting = tokio::spawn(async move { locks.acquire(&of_task, LONG).await });
    until("somebody waits", async || t.locks.inspect(&a).await.unwrap().unwrap().waiting_here > 0)
        .await;
    let Some(listed) = listed(t, 10).await else { return waiting.abort() };
    assert_eq!((names(&listed), listed.more), (vec!["wallet:1", "wallet:2", "wallet:3"], false));
    for (held, key) in listed.keys.iter().zip([&a, &b, &c]) {
        let mut holder = t.locks.inspect(key).await.unwrap().expect("it is held");
        assert!(holder.held >= held.holder.held && holder.remaining <= held.holder.remaining);
        (holder.held, holder.remaining) = (held.holder.held, held.holder.remaining);
        assert_eq!((&held.key, &held.holder), (key, &holder));
        // etcd does not tell the time.
        assert!(holder.token > 0 && (holder.held.is_some() || t.kind() == Kind::Etcd));
        assert_eq!(holder.waiting_here, usize::from(key == &a));
    }
    waiting.abort();
}

async fn a_listed_key_can_be_ended_by_force(t: &TestLocks) {
    let lease = t.hold(&LockKey::named("k")).await;
    let Some(found) = listed(t, 10).await else { return };
    assert!(t.locks.force_release(&found.keys[0].key, "a test").await.unwrap());
    assert!(!lease.is_held());
    assert_eq!(listed(t, 10).await.unwrap(), HeldKeys::default());
}

async fn more_keys_than_were_asked_for_are_reported(t: &TestLocks) {
    let mut leases = Vec::new();
    for n in 0..5 {
        leases.push(t.hold(&LockKey::of("k", n)).await);
    }
    for (most, more) in [(0, true), (1, true), (4, true), (5, false), (usize::MAX, false)] {
        let Some(found) = listed(t, most).await else { return };
        assert_eq!((found.keys.len(), found.more), (most.min(5), more), "of {most}");
        assert!(found.keys.is_sorted_by(|a, b| a.key < b.key));
    }
}

async fn a_lease_that_is_over_is_not_listed(t: &TestLocks) {
    let [released, expired] = ["released", "expired"].map(LockKey::named);
    let hold = Duration::from_millis(50);
    let lease = t.try_for(&expired, LONG, hold).await.unwrap();
    assert!(t.hold(&released).await.release().await);
    lease.lost().await;
    t.is_free_in_the_end(&expired).await;
    assert!(listed(t, 10).await.is_none_or(|listed| listed == HeldKeys::default()));
}

async fn keys_of_any_length_and_level_are_listed(t: &TestLocks) {
    let long = LockKey::named(&"ż".repeat(400));
    let odd = LockKey::named("a'b\"%_*[?]\\{c}");
    let global = LockKey::named("k").at_level(LockLevel::Global);
    let with_nul = ["a\0b", "a\0c"].map(LockKey::named);
    let mut leases = Vec::new();
    for key in [&long, &odd].into_iter().chain(&with_nul) {
        leases.push(t.hold(key).await);
    }
    if !matches!(t.kind(), Kind::Process | Kind::Sqlite | Kind::Aerospike) {
        leases.push(t.hold(&global).await);
    }
    let Some(found) = listed(t, 10).await else { return };
    assert_eq!(found.keys.len(), leases.len(), "{found:?}");
    assert!(found.keys.iter().any(|held| held.key == odd), "{found:?}");
    for lease in leases {
        let owner = t.locks.inspect(lease.key()).await.unwrap().unwrap().owner;
        let same = found.keys.iter().find(|held| held.holder.owner == owner);
        let key = &same.expect("it is listed").key;
        assert_eq!(key.level(), lease.key().level());
        // The key that is listed stands for the same lock, also if it was cut.
        assert_eq!(t.locks.inspect(key).await.unwrap().unwrap().owner, owner);
    }
}
