//! Semaphores: as many holders as permits, in order, and nothing left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockKey, LockOptions, LockProvider, LockScope, LockSource, LossCause,
    WithLockError,
};
use ekbatan_testkit::{Dropped, drop_at_poll};
use support::until;
use tokio::sync::mpsc;

use crate::providers::{LONG, TestLocks, until_busy};

on_every_provider! {
    as_many_have_a_permit_as_there_are,
    no_more_work_at_a_time_than_there_are_permits,
    waiters_get_permits_in_the_order_in_which_they_came,
    others_queue_behind_a_caller_that_waits,
    a_waiter_gets_a_permit_although_others_come_again_and_again,
    a_caller_dropped_at_any_await_leaves_nothing_behind,
    a_waiter_dropped_at_any_await_leaves_nothing_behind,
    a_waiter_that_loses_its_turn_queues_again,
    a_waiter_whose_process_dies_is_passed_over,
    a_permit_expires_and_can_be_extended,
    a_scope_reenters_its_permit,
    callers_that_name_different_numbers_share_the_first_permits,
    a_wait_that_ends_names_the_key,
    impossible_numbers_are_rejected,
}

fn key() -> LockKey {
    LockKey::named("k")
}

pub fn turn() -> LockKey {
    LockKey::named("k#turn")
}

pub fn slot(n: usize) -> LockKey {
    LockKey::named(&format!("k#{n}"))
}

pub fn patient() -> LockOptions {
    LockOptions::wait(LONG * 5).hold(LONG * 5)
}

fn only_try() -> LockOptions {
    LockOptions::wait(Duration::ZERO).hold(LONG)
}

async fn permit(locks: &LockProvider, permits: usize) -> Lease {
    let taken = locks.semaphore(&key(), permits).take(&patient()).await;
    taken.unwrap().expect("a permit is free in the end")
}

async fn try_now(locks: &LockProvider, permits: usize) -> Option<Lease> {
    locks.semaphore(&key(), permits).take(&only_try()).await.unwrap()
}

/// Waits until a caller has the turn: it waits for a slot.
pub async fn somebody_waits(locks: &LockProvider) {
    let has_turn = async || locks.inspect(&turn()).await.is_ok_and(|turn| turn.is_some());
    until("a caller has the turn", has_turn).await;
}

/// Waits until as many callers of this process queue for the turn.
pub async fn queue_for_the_turn(locks: &LockProvider, callers: usize) {
    until("all callers queue", async || {
        let turn = locks.inspect(&turn()).await;
        turn.is_ok_and(|turn| turn.is_some_and(|turn| turn.waiting_here == callers))
    })
    .await;
}

/// Waits until the caller that has lost the turn has it again.
pub async fn the_turn_is_taken_again(locks: &LockProvider, lost: i64) {
    let again = async {
        until("it queues again", async || {
            let turn = locks.inspect(&turn()).await;
            turn.is_ok_and(|turn| turn.is_some_and(|turn| turn.token > lost))
        })
        .await;
    };
    tokio::time::timeout(LONG, again).await.expect("it queues again");
}

/// Takes all permits at the same time.
async fn all_can_be_had(t: &TestLocks, permits: usize) {
    let mut leases = Vec::new();
    for _ in 0..permits {
        leases.push(permit(&t.locks, permits).await);
    }
    for lease in leases {
        assert!(lease.release().await);
    }
    t.is_free_in_the_end(&turn()).await;
}

async fn as_many_have_a_permit_as_there_are(t: &TestLocks) {
    let other = t.other_node().await;
    let nodes = [&t.locks, &other, &t.locks];
    let mut leases = Vec::new();
    for node in nodes {
        leases.push(try_now(node, 3).await.expect("a permit is free"));
    }
    leases.sort_by(|a, b| a.key().cmp(b.key()));
    assert_eq!(leases.iter().map(|it| it.key().clone()).collect::<Vec<_>>(), [0, 1, 2].map(slot));
    for node in [&t.locks, &other] {
        assert!(try_now(node, 3).await.is_none(), "all are taken");
    }
    let first = leases.remove(0);
    assert!(first.release().await);
    let next = permit(&other, 3).await;
    assert_eq!(next.key(), first.key());
    assert!(next.token() > first.token());
}

async fn no_more_work_at_a_time_than_there_are_permits(t: &TestLocks) {
    let (at_work, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let nodes = [t.locks.clone(), t.other_node().await];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (locks, at_work, most) = (nodes[n % 2].clone(), at_work.clone(), most.clone());
        tasks.spawn(async move {
            for _ in 0..8 {
                let work = async |permit: Lease| {
                    let now = at_work.fetch_add(1, Ordering::SeqCst) + 1;
                    assert!(now <= 2 && permit.is_held(), "{now} at work");
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    at_work.fetch_sub(1, Ordering::SeqCst);
                    Ok::<_, ()>(())
                };
                locks.semaphore(&key(), 2).with_permit(patient(), work).await.unwrap();
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    assert!(most.load(Ordering::SeqCst) > 0);
    all_can_be_had(t, 2).await;
}

async fn waiters_get_permits_in_the_order_in_which_they_came(t: &TestLocks) {
    let held = [permit(&t.locks, 2).await, permit(&t.locks, 2).await];
    let (got, mut order) = mpsc::unbounded_channel();
    let mut waiting = Vec::new();
    for n in 0..4 {
        let (locks, got) = (t.locks.clone(), got.clone());
        waiting.push(tokio::spawn(async move {
            got.send((n, permit(&locks, 2).await)).unwrap();
        }));
        somebody_waits(&t.locks).await;
        queue_for_the_turn(&t.locks, n).await;
    }
    let mut leases = held.to_vec();
    for expected in 0..4 {
        assert!(leases.remove(0).release().await);
        let (n, lease) = order.recv().await.unwrap();
        assert_eq!(n, expected);
        leases.push(lease);
    }
}

/// Also while permits are free.
async fn others_queue_behind_a_caller_that_waits(t: &TestLocks) {
    let first = t.hold(&turn()).await;
    for node in [&t.locks, &t.other_node().await] {
        assert!(try_now(node, 2).await.is_none(), "somebody waits");
    }
    let locks = t.locks.clone();
    let next = tokio::spawn(async move { permit(&locks, 2).await });
    queue_for_the_turn(&t.locks, 1).await;
    for n in [0, 1] {
        assert_eq!(t.locks.inspect(&slot(n)).await.unwrap(), None, "nobody has overtaken");
    }
    assert!(first.release().await);
    assert!(next.await.unwrap().is_held());
}

async fn a_waiter_gets_a_permit_although_others_come_again_and_again(t: &TestLocks) {
    let (other, done) = (t.other_node().await, Arc::new(AtomicBool::new(false)));
    let mut busy = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (locks, done) = (t.locks.clone(), done.clone());
        busy.spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let permit = permit(&locks, 2).await;
                tokio::time::sleep(Duration::from_millis(2)).await;
                drop(permit);
            }
        });
    }
    for _ in 0..3 {
        permit(&other, 2).await.release().await;
    }
    done.store(true, Ordering::SeqCst);
    while let Some(ended) = busy.join_next().await {
        ended.unwrap();
    }
}

async fn a_caller_dropped_at_any_await_leaves_nothing_behind(t: &TestLocks) {
    for poll in 1..60 {
        let taking = drop_at_poll(poll, permit(&t.locks, 2));
        let finished = matches!(taking.await, Dropped::Finished(_));
        all_can_be_had(t, 2).await;
        if finished {
            break;
        }
    }
}

async fn a_waiter_dropped_at_any_await_leaves_nothing_behind(t: &TestLocks) {
    for poll in 1..60 {
        let held = [permit(&t.locks, 2).await, permit(&t.locks, 2).await];
        let waits = async {
            let freeing = async {
                somebody_waits(&t.locks).await;
                assert!(held[0].release().await);
            };
            tokio::join!(permit(&t.locks, 2), freeing).0
        };
        let finished = matches!(drop_at_poll(poll, waits).await, Dropped::Finished(_));
        drop(held);
        all_can_be_had(t, 2).await;
        if finished {
            break;
        }
    }
}

async fn a_waiter_that_loses_its_turn_queues_again(t: &TestLocks) {
    let held = [permit(&t.locks, 2).await, permit(&t.locks, 2).await];
    let locks = t.locks.clone();
    let waiting = tokio::spawn(async move { permit(&locks, 2).await });
    somebody_waits(&t.locks).await;
    let before = t.locks.inspect(&turn()).await.unwrap().unwrap();
    assert!(t.locks.force_release(&turn(), "a test").await.unwrap());
    the_turn_is_taken_again(&t.locks, before.token).await;
    assert!(held[1].release().await);
    assert_eq!(waiting.await.unwrap().key(), held[1].key());
}

async fn a_waiter_whose_process_dies_is_passed_over(t: &TestLocks) {
    let held = permit(&t.locks, 1).await;
    let dying = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let dying = dying.unwrap();
    tokio::task::block_in_place(|| {
        dying.block_on(async {
            let other = t.other_node().await;
            let waits = other.clone();
            tokio::spawn(async move {
                // Short, because it may get the permit in the moment in which it dies.
                let options = patient().hold(Duration::from_secs(2));
                waits.semaphore(&key(), 1).take(&options).await
            });
            somebody_waits(&other).await;
        });
    });
    // Without a word to the server.
    dying.shutdown_background();
    assert!(held.release().await);
    let Ok(next) = tokio::time::timeout(LONG, permit(&t.locks, 1)).await else {
        let holder = async |key| t.locks.inspect(&key).await.unwrap();
        panic!("the turn: {:?}, the permit: {:?}", holder(turn()).await, holder(slot(0)).await);
    };
    assert!(next.is_held());
}

async fn a_permit_expires_and_can_be_extended(t: &TestLocks) {
    let hold = Duration::from_millis(300);
    let semaphore = t.locks.semaphore(&key(), 1);
    let taken = semaphore.take(&patient().hold(hold)).await;
    let lease = taken.unwrap().unwrap();
    if lease.extend(hold).await.is_ok() {
        assert!(lease.remaining() <= hold * 2);
    }
    assert!(matches!(lease.lost().await, LossCause::Expired(_)));
    let next = permit(&t.other_node().await, 1).await;
    assert!(next.token() > lease.token() && !lease.release().await && next.is_held());
}

async fn a_scope_reenters_its_permit(t: &TestLocks) {
    let semaphore = t.locks.semaphore(&key(), 2);
    let work = semaphore.with_permit(patient(), async |outer: Lease| {
        let again = semaphore.with_permit(only_try(), async |inner: Lease| {
            Ok::<_, WithLockError<()>>((inner.key().clone(), inner.token()))
        });
        assert_eq!(again.await.unwrap(), (outer.key().clone(), outer.token()));
        assert!(outer.is_held());
        Ok::<_, ()>(())
    });
    work.await.unwrap();
    LockScope::run(async {
        let options = patient();
        let both = tokio::join!(semaphore.take(&options), semaphore.take(&options));
        let (one, two) = (both.0.unwrap().unwrap(), both.1.unwrap().unwrap());
        let again = semaphore.take(&only_try()).await.unwrap().unwrap();
        assert!([one.key(), two.key()].contains(&again.key()));
    })
    .await;
    all_can_be_had(t, 2).await;
}

async fn callers_that_name_different_numbers_share_the_first_permits(t: &TestLocks) {
    let first = permit(&t.locks, 1).await;
    let [second, third] = [permit(&t.locks, 3).await, permit(&t.locks, 3).await];
    assert!(try_now(&t.locks, 3).await.is_none() && try_now(&t.locks, 2).await.is_none());
    for lease in [&second, &third] {
        assert_ne!(lease.key(), first.key());
        assert!(lease.release().await);
    }
    assert!(try_now(&t.locks, 1).await.is_none(), "the one permit that it knows is taken");
    assert!(try_now(&t.locks, 2).await.is_some());
}

async fn a_wait_that_ends_names_the_key(t: &TestLocks) {
    let _held = permit(&t.locks, 1).await;
    let semaphore = t.locks.semaphore(&key(), 1);
    until_busy(Duration::from_millis(300), async |wait| {
        let options = LockOptions::wait(wait).hold(LONG);
        let work = semaphore.with_permit(options, async |_| -> Result<(), ()> {
            unreachable!("the permit is taken")
        });
        match work.await.unwrap_err() {
            WithLockError::Busy { key: of, waited } => {
                assert!(of == key() && waited >= wait);
                Ok(())
            }
            other => Err(other),
        }
    })
    .await;
    t.is_free_in_the_end(&turn()).await;
}

async fn impossible_numbers_are_rejected(t: &TestLocks) {
    for permits in [0, 129] {
        let refused = t.locks.semaphore(&key(), permits).take(&patient()).await.unwrap_err();
        let expected = format!("`k` has {permits} permits; name a number from 1 to 128");
        assert_eq!(refused.to_string(), expected);
    }
    let blank = t.locks.semaphore(&LockKey::named(" "), 1).take(&patient()).await;
    assert!(blank.unwrap_err().to_string().starts_with("a lock's key is blank"));
}
