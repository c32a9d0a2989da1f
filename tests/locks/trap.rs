//! The trap of locks in SQL: a wait that is cut short, by its time or because its caller was
//! dropped, and has the lock all the same. Nobody knows of it then, and nobody gives it back.
//!
//! Three processes fight for a few keys with waits that are about as long as an answer takes,
//! and a part of their callers is dropped at random moments. Behind them the server itself and
//! a process that has seen nothing of it say that nothing is held.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, LockKey, LockProvider, lock_key};
use ekbatan_testkit::PostgresServer;

use crate::providers::{Kind, LONG, mysql_database, on_mysql, on_postgres};
use crate::{mysql, postgres};

mod sprung;

/// How many waits there are.
const WAITS: usize = 4_000;
const PROCESSES: usize = 3;
const TASKS: usize = 4;
const KEYS: usize = 3;

/// What nobody gives back is held for longer than it is looked for.
const HOLD: Duration = Duration::from_secs(1_000);

macro_rules! on_every_sql_provider {
    ($($module:ident $kind:ident),* $(,)?) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $module() {
            an_interrupted_wait_leaves_no_lock(Kind::$kind).await;
        }
    )*};
}

on_every_sql_provider! {
    postgres_lease PostgresLease,
    postgres_session PostgresSession,
    mysql_lease MySqlLease,
    mysql_session MySqlSession,
    mariadb_lease MariaDbLease,
    mariadb_session MariaDbSession,
}

/// A database of one test, and what is asked of it.
struct Place {
    kind: Kind,
    url: String,
}

impl Place {
    async fn start(kind: Kind) -> Self {
        let url = match kind {
            Kind::PostgresLease | Kind::PostgresSession => {
                PostgresServer::shared().await.unwrap().create_database().await.unwrap()
            }
            _ => mysql_database(kind).await,
        };
        Self { kind, url }
    }

    /// What one process has.
    async fn process(&self) -> LockProvider {
        match self.kind {
            Kind::PostgresLease | Kind::PostgresSession => on_postgres(self.kind, &self.url).await,
            _ => on_mysql(self.kind, &self.url).await,
        }
    }

    /// How many locks the server knows to be held.
    async fn held(&self) -> i64 {
        match self.kind {
            Kind::PostgresLease | Kind::PostgresSession => {
                postgres::number(&self.url, postgres::held(self.kind)).await
            }
            _ => mysql::number(&self.url, mysql::held(self.kind)).await,
        }
    }
}

/// How waits ended.
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

/// One of those who fight, until its share of the waits is over.
async fn fight(seed: u64, locks: LockProvider, inside: Arc<[AtomicUsize; KEYS]>, ends: Arc<Ends>) {
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..WAITS / (PROCESSES * TASKS) + 1 {
        let n = random.usize(0..KEYS);
        let key = lock_key!("key", n);
        let wait = Duration::from_micros(random.u64(0..3_000));
        let taking = locks.try_acquire(&key, wait, HOLD);
        let taken = if random.u8(0..3) == 0 {
            let moment = Duration::from_micros(random.u64(0..3_000));
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
        let Some(lease) = taken.unwrap() else {
            Ends::count(&ends.timed_out);
            continue;
        };
        Ends::count(&ends.granted);
        assert_eq!(inside[n].fetch_add(1, Ordering::SeqCst), 0, "one at a time, seed {seed}");
        tokio::time::sleep(Duration::from_micros(random.u64(0..2_000))).await;
        inside[n].fetch_sub(1, Ordering::SeqCst);
        match random.bool() {
            true => assert!(lease.release().await, "seed {seed}"),
            false => drop(lease),
        }
    }
}

/// Has processes fight for the keys.
async fn fight_it_out(processes: &[LockProvider]) {
    let ends = Arc::new(Ends::default());
    let inside = Arc::new([const { AtomicUsize::new(0) }; KEYS]);
    let mut tasks = tokio::task::JoinSet::new();
    for seed in 0..PROCESSES * TASKS {
        let locks = processes[seed % PROCESSES].clone();
        tasks.spawn(fight(seed as u64, locks, inside.clone(), ends.clone()));
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let all = [&ends.granted, &ends.timed_out, &ends.dropped].map(|end| end.load(Ordering::SeqCst));
    assert!(all.iter().sum::<usize>() >= WAITS && all.iter().all(|count| *count > 0), "{ends:?}");
}

async fn an_interrupted_wait_leaves_no_lock(kind: Kind) {
    let place = Place::start(kind).await;
    let mut processes = Vec::new();
    for _ in 0..PROCESSES {
        processes.push(place.process().await);
    }
    fight_it_out(&processes).await;
    // The processes live on, with their sessions and whatever these hold.
    let nothing = async {
        while place.held().await > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LONG, nothing).await.expect("the server holds what nobody has");
    let fresh = place.process().await;
    for n in 0..KEYS {
        let key: LockKey = lock_key!("key", n);
        let lease = fresh.try_acquire(&key, Duration::ZERO, HOLD).await.unwrap();
        assert!(lease.unwrap_or_else(|| panic!("{key} is free")).release().await);
    }
    drop(processes);
}
