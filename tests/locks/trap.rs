//! The trap of locks in SQL: a wait is interrupted by its timeout or because its caller is dropped,
//! and the server grants the lock nevertheless. Nobody knows about such a lock, so nobody releases
//! it.
//!
//! Three processes contend for a few keys. Their waits take about as long as an answer, whatever that
//! is on this machine, and some callers are dropped at random moments. In the end the server must
//! report that no lock is held, and another process must be able to acquire every key.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockError, LockKey, LockProvider, lock_key};

use crate::providers::Kind;
use crate::sql::place::Place;
use support::soak::rounds;

mod sprung;

const PROCESSES: usize = 3;
const TASKS: usize = 4;
const KEYS: usize = 3;

/// The longest wait, if answers take less.
const SHORTEST: Duration = Duration::from_millis(3);

/// Longer than the test looks for locks that nobody released.
const HOLD: Duration = Duration::from_secs(1_000);

on_every_sql_server! { an_interrupted_wait_leaves_no_lock }

/// How the waits ended.
#[derive(Debug, Default)]
struct Ends {
    granted: AtomicUsize,
    timed_out: AtomicUsize,
    dropped: AtomicUsize,
}

impl Ends {
    fn count(end: &AtomicUsize) {
        end.fetch_add(1, Ordering::SeqCst);
    }
}

/// The number of waits.
fn waits() -> usize {
    rounds(1_000, 4_000)
}

/// One of the contenders, until it has done its share of the waits.
async fn contender(
    seed: u64,
    locks: LockProvider,
    inside: Arc<[AtomicUsize; KEYS]>,
    ends: Arc<Ends>,
    longest: Duration,
) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..waits() / (PROCESSES * TASKS) + 1 {
        let n = random.usize(0..KEYS);
        let key = lock_key!("key", n);
        let wait = longest.mul_f64(random.f64());
        let taking = locks.try_acquire(&key, wait, HOLD);
        let taken = if random.u8(0..3) == 0 {
            let moment = longest.mul_f64(random.f64());
            match tokio::time::timeout(moment, taking).await {
                Ok(taken) => taken,
                Err(_) => {
                    Ends::count(&ends.dropped);
                    continue;
                }
            }
        } else {
            taking.await
        };
        let taken = match taken {
            // The wait was shorter than the server takes to answer.
            Err(LockError::Unavailable { .. } | LockError::InDoubt { .. }) => None,
            taken => taken.unwrap(),
        };
        let Some(lease) = taken else {
            Ends::count(&ends.timed_out);
            continue;
        };
        Ends::count(&ends.granted);
        assert_eq!(
            inside[n].fetch_add(1, Ordering::SeqCst),
            0,
            "a key has one holder, seed {seed}"
        );
        tokio::time::sleep(Duration::from_micros(random.u64(0..2_000))).await;
        inside[n].fetch_sub(1, Ordering::SeqCst);
        if random.bool() {
            assert!(lease.release().await, "seed {seed}");
        } else {
            drop(lease);
        }
    }
}

/// Lets the processes contend for the keys, with waits up to `longest`. Returns whether a key was granted.
async fn contend(processes: &[LockProvider], longest: Duration) -> bool {
    let ends = Arc::new(Ends::default());
    let inside = Arc::new([const { AtomicUsize::new(0) }; KEYS]);
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..PROCESSES * TASKS {
        let locks = processes[seed % PROCESSES].clone();
        tasks.spawn(contender(seed as u64, locks, inside.clone(), ends.clone(), longest));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let of = |end: &AtomicUsize| end.load(Ordering::SeqCst);
    let (granted, cut) = (of(&ends.granted), [&ends.timed_out, &ends.dropped].map(of));
    assert!(granted + cut.iter().sum::<usize>() >= waits(), "{ends:?}");
    assert!(cut.iter().all(|count| *count > 0), "{ends:?}");
    granted > 0
}

async fn an_interrupted_wait_leaves_no_lock(kind: Kind) {
    let place = Place::shared(kind).await;
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(place.process().await);
    }
    let mut longest = SHORTEST;
    while !contend(&processes, longest).await {
        // No answer came in time.
        longest *= 4;
    }
    // The processes keep their sessions, with all locks that these hold.
    place.none_held().await;
    let fresh = place.process().await;
    for n in 0..KEYS {
        let key: LockKey = lock_key!("key", n);
        let lease = fresh.try_acquire(&key, Duration::ZERO, HOLD).await.unwrap();
        assert!(lease.unwrap_or_else(|| panic!("{key} is free")).release().await);
    }
    drop(processes);
}
