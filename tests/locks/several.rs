//! Several keys at once: all or none, and no deadlock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockScope, LockSource,
    WithLockError, lock_key,
};
use ekbatan_testkit::{Dropped, drop_at_poll};
use support::until;

use crate::providers::{LONG, TestLocks, until_busy};

on_every_provider! {
    leases_come_in_the_order_of_the_keys_and_twice_for_a_duplicate,
    keys_named_in_opposite_order_do_not_deadlock,
    one_held_key_leaves_the_others_free,
    one_timeout_covers_all_keys,
    work_that_fails_panics_or_is_dropped_frees_all_keys,
    a_caller_dropped_while_acquiring_leaves_no_key_held,
    a_scope_reenters_several_keys,
    work_does_not_start_after_one_of_its_leases_expired,
}

fn keys<const N: usize>(names: [&str; N]) -> [LockKey; N] {
    names.map(LockKey::named)
}

async fn all_are_free_in_the_end(t: &TestLocks, keys: &[LockKey]) {
    for key in keys {
        t.is_free_in_the_end(key).await;
    }
}

async fn leases_come_in_the_order_of_the_keys_and_twice_for_a_duplicate(t: &TestLocks) {
    let asked = keys(["c", "a", "c", "b"]);
    let options = LockOptions::wait(LONG).hold(LONG);
    let work = t.locks.with_locks(&asked, options, async |leases: Vec<Lease>| {
        assert_eq!(leases.iter().map(|lease| lease.key().id()).collect::<String>(), "cacb");
        assert_eq!(leases[0].token(), leases[2].token());
        assert!(leases.iter().all(Lease::is_held));
        let other = t.locks.clone();
        let outside = tokio::spawn(async move {
            for key in keys(["a", "b", "c"]) {
                let found = other.try_acquire(&key, Duration::ZERO, LONG).await.unwrap();
                assert!(found.is_none(), "{key} is held");
            }
        });
        outside.await.unwrap();
        Ok::<_, ()>(leases)
    });
    let leases = work.await.unwrap();
    assert!(!leases.iter().any(Lease::is_held), "they are released although the caller keeps them");
    all_are_free_in_the_end(t, &asked).await;
    let none =
        t.locks.with_locks(&[], options, async |leases: Vec<Lease>| Ok::<_, ()>(leases.len()));
    assert_eq!(none.await.unwrap(), 0);
}

async fn keys_named_in_opposite_order_do_not_deadlock(t: &TestLocks) {
    let inside: Arc<[AtomicBool; 3]> = Arc::default();
    let nodes = [t.locks.clone(), t.other_node().await];
    let orders = [[0, 1, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]];
    let mut tasks = tokio::task::JoinSet::new();
    for (n, order) in orders.into_iter().enumerate() {
        let (locks, inside) = (nodes[n % 2].clone(), inside.clone());
        tasks.spawn(async move {
            let wanted = order.map(|n: i32| lock_key!("key", n));
            for _ in 0..20 {
                let options = LockOptions::wait(LONG * 5).hold(LONG * 5);
                let work = locks.with_locks(&wanted, options, async |_| {
                    for here in inside.iter() {
                        assert!(!here.swap(true, Ordering::SeqCst), "a key has one holder");
                    }
                    tokio::task::yield_now().await;
                    inside.iter().for_each(|here| here.store(false, Ordering::SeqCst));
                    Ok::<_, ()>(())
                });
                work.await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
}

async fn one_held_key_leaves_the_others_free(t: &TestLocks) {
    let asked = keys(["a", "b", "c"]);
    let _held = t.hold(&asked[1]).await;
    until_busy(Duration::from_millis(500), async |wait| {
        let options = LockOptions::wait(wait).hold(LONG);
        let work = t.locks.with_locks(&asked, options, async |_| -> Result<(), ()> {
            unreachable!("one of them is held")
        });
        match work.await.unwrap_err() {
            WithLockError::Busy { key, waited } if key == asked[1] => {
                assert!(waited >= wait);
                Ok(())
            }
            other => Err(other),
        }
    })
    .await;
    for key in [&asked[0], &asked[2]] {
        assert!(t.hold(key).await.release().await);
    }
}

async fn one_timeout_covers_all_keys(t: &TestLocks) {
    let asked = keys(["a", "b"]);
    let _second = t.hold(&asked[1]).await;
    until_busy(Duration::from_millis(1_000), async |wait| {
        let first = t.try_for(&asked[0], LONG, wait / 4).await.unwrap();
        let options = LockOptions::wait(wait).hold(LONG);
        let locks: &dyn KeyedLockProvider = &t.locks;
        let work = locks.with_locks(&asked, options, async |_| -> Result<(), ()> {
            unreachable!("one of them is held")
        });
        match work.await.unwrap_err() {
            WithLockError::Busy { key, waited } if key == asked[1] => {
                assert!(waited >= wait && !first.is_held());
                Ok(())
            }
            other => Err(other),
        }
    })
    .await;
    t.is_free_in_the_end(&asked[0]).await;
}

async fn work_that_fails_panics_or_is_dropped_frees_all_keys(t: &TestLocks) {
    let asked = keys(["a", "b", "c"]);
    let options = LockOptions::wait(LONG).hold(LONG);
    let failed = t.locks.with_locks(&asked, options, async |_| Err::<(), _>("no")).await;
    assert!(matches!(failed, Err(WithLockError::Work("no"))));

    let (locks, of_task) = (t.locks.clone(), asked.clone());
    let panicking = tokio::spawn(async move {
        let work = async |_| -> Result<(), ()> { panic!("in the middle of the work") };
        locks.with_locks(&of_task, options, work).await
    });
    assert!(panicking.await.unwrap_err().is_panic());

    let mut dropped = Box::pin(
        t.locks
            .with_locks(&asked, options, async |_| std::future::pending::<Result<(), ()>>().await),
    );
    while t.locks.inspect(&asked[2]).await.unwrap().is_none() {
        tokio::select! {
            _ = &mut dropped => unreachable!("the work never ends"),
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    }
    drop(dropped);
    all_are_free_in_the_end(t, &asked).await;
}

async fn a_caller_dropped_while_acquiring_leaves_no_key_held(t: &TestLocks) {
    let asked = keys(["a", "b", "c"]);
    for poll in 1..60 {
        let taking = drop_at_poll(poll, async {
            let options = LockOptions::wait(LONG).hold(LONG);
            t.locks.with_locks(&asked, options, async |_| Ok::<_, ()>(())).await.unwrap();
        });
        let dropped = taking.await;
        for key in &asked {
            assert!(t.hold(key).await.release().await);
        }
        if matches!(dropped, Dropped::Finished(_)) {
            break;
        }
    }
    all_are_free_in_the_end(t, &asked).await;
}

async fn a_scope_reenters_several_keys(t: &TestLocks) {
    let asked = keys(["a", "b"]);
    let options = LockOptions::wait(LONG).hold(LONG);
    LockScope::run(async {
        let outer = t.hold(&asked[0]).await;
        let work = t.locks.with_locks(&asked, options, async |leases: Vec<Lease>| {
            assert_eq!(leases[0].token(), outer.token());
            let within = t.try_now(&asked[1]).await.expect("the scope holds the key");
            assert_eq!(within.token(), leases[1].token());
            Ok::<_, ()>(())
        });
        work.await.unwrap();
        assert!(outer.is_held());
        t.is_free_in_the_end(&asked[1]).await;
    })
    .await;
    all_are_free_in_the_end(t, &asked).await;
}

async fn work_does_not_start_after_one_of_its_leases_expired(t: &TestLocks) {
    let asked = keys(["a", "b"]);
    let held = t.hold(&asked[1]).await;
    let options = LockOptions::wait(LONG).hold(Duration::from_millis(100));
    let work = t.locks.with_locks(&asked, options, async |_| -> Result<(), ()> {
        unreachable!("the first lease has expired")
    });
    let freeing = async {
        // The work waits for the second key while its lease on the first one expires.
        until("the work waits for the second key", async || {
            let holder = t.locks.inspect(&asked[1]).await;
            holder.is_ok_and(|holder| holder.is_some_and(|holder| holder.waiting_here > 0))
        })
        .await;
        t.is_free_in_the_end(&asked[0]).await;
        held.release().await;
    };
    match tokio::join!(work, freeing).0.unwrap_err() {
        WithLockError::Lock(LockError::Lost { key, .. }) => assert_eq!(key, asked[0]),
        other => panic!("{other:?}"),
    }
    all_are_free_in_the_end(t, &asked).await;
}
