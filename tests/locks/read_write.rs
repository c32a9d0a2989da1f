//! Read/write locks: readers together, writers alone, each in turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockProvider, LockScope, LockSource,
    WithLockError, WriteLease,
};
use ekbatan_testkit::{Dropped, drop_at_poll};

use crate::providers::{LONG, TestLocks};
use crate::semaphore::{
    patient, queue_for_the_turn, slot, somebody_waits, the_turn_is_taken_again, turn,
};

on_every_provider! {
    readers_read_together_and_exclude_the_writer,
    readers_and_writers_exclude_each_other,
    a_reader_waits_behind_a_writer_that_waits,
    a_writer_gets_its_turn_although_readers_come_again_and_again,
    a_writer_dropped_at_any_await_leaves_nothing_behind,
    a_writer_that_loses_its_turn_queues_again,
    a_reader_whose_time_is_over_lets_the_writer_in,
    a_writer_holds_for_its_whole_time_after_the_wait,
    a_write_lease_ends_as_a_whole,
    a_scope_that_writes_reads_and_one_that_reads_cannot_write,
    a_writer_beside_a_reader_of_its_scope_does_not_get_its_slot,
}

const READERS: usize = 3;

/// Longer than any machine stands still.
const LONGEST_HOLD: Duration = Duration::from_secs(16);

fn key() -> LockKey {
    LockKey::named("k")
}

fn only_try() -> LockOptions {
    LockOptions::wait(Duration::ZERO).hold(LONG)
}

async fn reader(locks: &LockProvider) -> Lease {
    let read = locks.read_write(&key(), READERS).read(&patient()).await;
    read.unwrap().expect("readers get their turn")
}

async fn writer(locks: &LockProvider) -> WriteLease {
    let write = locks.read_write(&key(), READERS).write(&patient()).await;
    write.unwrap().expect("writers get their turn")
}

async fn can_read(locks: &LockProvider) -> bool {
    locks.read_write(&key(), READERS).read(&only_try()).await.unwrap().is_some()
}

async fn can_write(locks: &LockProvider) -> bool {
    locks.read_write(&key(), READERS).write(&only_try()).await.unwrap().is_some()
}

async fn nothing_is_left(t: &TestLocks) {
    for key in (0..READERS).map(slot).chain([turn()]) {
        t.is_free_in_the_end(&key).await;
    }
}

async fn readers_read_together_and_exclude_the_writer(t: &TestLocks) {
    let other = t.other_node().await;
    let readers = [reader(&t.locks).await, reader(&other).await, reader(&t.locks).await];
    for node in [&t.locks, &other] {
        assert!(!can_write(node).await && !can_read(node).await, "all places are taken");
    }
    assert!(readers.iter().all(Lease::is_held));
    for reader in &readers[1..] {
        assert!(reader.release().await);
    }
    assert!(!can_write(&other).await, "somebody reads");
    assert!(readers[0].release().await);
    let write = writer(&other).await;
    for node in [&t.locks, &other] {
        assert!(!can_write(node).await && !can_read(node).await, "somebody writes");
    }
    assert!(write.is_held() && write.release().await && !write.is_held());
    nothing_is_left(t).await;
    assert!(can_read(&t.locks).await);
}

async fn readers_and_writers_exclude_each_other(t: &TestLocks) {
    let (reading, writing) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let nodes = [t.locks.clone(), t.other_node().await];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..6 {
        let locks = nodes[n % 2].clone();
        let (reading, writing) = (reading.clone(), writing.clone());
        // One writer and two readers on each node.
        tasks.spawn(async move {
            for _ in 0..6 {
                let lock = locks.read_write(&key(), READERS);
                if n < 2 {
                    let work = async |_| {
                        assert!(!writing.swap(true, Ordering::SeqCst), "one writer at a time");
                        tokio::task::yield_now().await;
                        assert_eq!(reading.load(Ordering::SeqCst), 0, "a writer is alone");
                        writing.store(false, Ordering::SeqCst);
                        Ok::<_, ()>(())
                    };
                    lock.with_write(patient(), work).await.unwrap();
                } else {
                    let work = async |_| {
                        reading.fetch_add(1, Ordering::SeqCst);
                        assert!(!writing.load(Ordering::SeqCst), "nobody reads beside a writer");
                        tokio::task::yield_now().await;
                        reading.fetch_sub(1, Ordering::SeqCst);
                        Ok::<_, ()>(())
                    };
                    lock.with_read(patient(), work).await.unwrap();
                }
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    nothing_is_left(t).await;
}

async fn a_reader_waits_behind_a_writer_that_waits(t: &TestLocks) {
    let reads = reader(&t.locks).await;
    let locks = t.locks.clone();
    let writes = tokio::spawn(async move { writer(&locks).await });
    somebody_waits(&t.locks).await;
    assert!(!can_read(&t.locks).await && !can_read(&t.other_node().await).await);
    let locks = t.locks.clone();
    let next = tokio::spawn(async move { reader(&locks).await });
    queue_for_the_turn(&t.locks, 1).await;
    assert!(reads.is_held() && !next.is_finished());
    assert!(reads.release().await);
    let write = writes.await.unwrap();
    assert!(write.is_held() && !next.is_finished());
    assert!(write.release().await);
    assert!(next.await.unwrap().is_held());
}

async fn a_writer_gets_its_turn_although_readers_come_again_and_again(t: &TestLocks) {
    let (other, done) = (t.other_node().await, Arc::new(AtomicBool::new(false)));
    let mut readers = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let (locks, done) = (t.locks.clone(), done.clone());
        readers.spawn(async move {
            while !done.load(Ordering::SeqCst) {
                let read = reader(&locks).await;
                tokio::time::sleep(Duration::from_millis(3)).await;
                drop(read);
            }
        });
    }
    for _ in 0..2 {
        assert!(writer(&other).await.release().await);
    }
    done.store(true, Ordering::SeqCst);
    while let Some(ended) = readers.join_next().await {
        ended.unwrap();
    }
}

async fn a_writer_dropped_at_any_await_leaves_nothing_behind(t: &TestLocks) {
    for poll in 1..60 {
        let reads = reader(&t.locks).await;
        let waits = async {
            let freeing = async {
                somebody_waits(&t.locks).await;
                assert!(reads.release().await);
            };
            tokio::join!(writer(&t.locks), freeing).0
        };
        let finished = matches!(drop_at_poll(poll, waits).await, Dropped::Finished(_));
        drop(reads);
        nothing_is_left(t).await;
        if finished {
            break;
        }
    }
}

async fn a_writer_that_loses_its_turn_queues_again(t: &TestLocks) {
    let reads = reader(&t.locks).await;
    let locks = t.locks.clone();
    let writes = tokio::spawn(async move { writer(&locks).await });
    somebody_waits(&t.locks).await;
    let before = t.locks.inspect(&turn()).await.unwrap().unwrap();
    assert!(t.locks.force_release(&turn(), "a test").await.unwrap());
    the_turn_is_taken_again(&t.locks, before.token).await;
    assert!(reads.is_held() && reads.release().await);
    assert!(writes.await.unwrap().is_held());
}

async fn a_reader_whose_time_is_over_lets_the_writer_in(t: &TestLocks) {
    let lock = t.locks.read_write(&key(), READERS);
    let options = patient().hold(Duration::from_millis(200));
    let read = lock.read(&options).await.unwrap().unwrap();
    let write = writer(&t.other_node().await).await;
    assert!(!read.is_held() && write.is_held());
    assert!(!read.release().await && write.is_held(), "a late release changes nothing");
}

async fn a_writer_holds_for_its_whole_time_after_the_wait(t: &TestLocks) {
    let mut hold = Duration::from_secs(2);
    loop {
        let written = write_after_a_long_wait(t, hold).await;
        if let Ok(Some(lease)) = &written
            && lease.remaining() > hold / 2
            && lease.extend(LONG).await.is_ok()
            && lease.remaining() > LONG
        {
            return;
        }
        // A busy machine may stand still for longer than the writer holds.
        let is_late = matches!(written, Ok(Some(_)) | Err(LockError::Lost { .. }));
        assert!(is_late && hold < LONGEST_HOLD, "{written:?}");
        hold *= 2;
    }
}

/// A writer that waits for a reader for longer than it holds.
async fn write_after_a_long_wait(
    t: &TestLocks,
    hold: Duration,
) -> Result<Option<WriteLease>, LockError> {
    let reads = reader(&t.locks).await;
    let locks = t.locks.clone();
    let writes = tokio::spawn(async move {
        locks.read_write(&key(), READERS).write(&patient().hold(hold)).await
    });
    somebody_waits(&t.locks).await;
    tokio::time::sleep(hold + hold / 4).await;
    assert!(reads.release().await);
    writes.await.unwrap()
}

async fn a_write_lease_ends_as_a_whole(t: &TestLocks) {
    let lease = writer(&t.locks).await;
    assert!(t.locks.force_release(&slot(1), "a test").await.unwrap());
    lease.lost().await;
    assert!(!lease.is_held() && lease.remaining().is_zero());
    assert!(matches!(lease.check(), Err(LockError::Lost { .. })));
    assert!(!lease.release().await);
    nothing_is_left(t).await;
}

async fn a_scope_that_writes_reads_and_one_that_reads_cannot_write(t: &TestLocks) {
    let lock = t.locks.read_write(&key(), READERS);
    let work = lock.with_write(patient(), async |outer: WriteLease| {
        let nothing = async |_| Ok::<_, ()>(());
        lock.with_read(only_try(), nothing).await.unwrap();
        let nothing = async |_| Ok::<_, ()>(());
        lock.with_write(only_try(), nothing).await.unwrap();
        assert!(outer.is_held());
        Ok::<_, ()>(outer)
    });
    assert!(!work.await.unwrap().is_held(), "it is released although the caller keeps it");
    let work = lock.with_read(patient(), async |outer: Lease| {
        let nothing = async |_| -> Result<(), ()> { unreachable!("it reads") };
        match lock.with_write(patient(), nothing).await.unwrap_err() {
            WithLockError::Lock(error @ LockError::Upgrade { .. }) => {
                let text = error.to_string();
                assert!(text.starts_with("the scope reads under `k` and cannot write"), "{text}");
            }
            other => panic!("{other:?}"),
        }
        assert!(outer.is_held());
        Ok::<_, ()>(())
    });
    work.await.unwrap();
    nothing_is_left(t).await;
}

async fn a_writer_beside_a_reader_of_its_scope_does_not_get_its_slot(t: &TestLocks) {
    let turn_of_another = t.locks.acquire(&turn(), LONG).await.unwrap();
    let lock = t.locks.read_write(&key(), READERS);
    LockScope::run(async {
        let options = patient();
        let reads = async {
            queue_for_the_turn(&t.locks, 1).await;
            let reader = t.locks.take(&slot(0), &only_try()).await.unwrap();
            assert!(turn_of_another.release().await);
            reader
        };
        let (written, reader) = tokio::join!(lock.write(&options), reads);
        assert!(matches!(written, Err(LockError::Upgrade { .. })), "{written:?}");
        assert!(reader.expect("the slot is free").is_held());
    })
    .await;
    nothing_is_left(t).await;
}
