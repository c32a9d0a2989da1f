//! Pools over real files.

use std::fmt;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::*;
use crate::db::sqlite::SqliteDriver;
use crate::db::{Pool, Route};

const MOMENT: Duration = Duration::from_millis(80);

/// A pool over a file of its own, in a folder that goes with it.
fn pool(set: impl FnOnce(DataSourceConfig) -> DataSourceConfig) -> (Pool, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("pool.db").display());
    let config = set(DataSourceConfig::new(url).maximum_pool_size(5));
    let driver = SqliteDriver::new(&config).unwrap();
    (Pool::new(Arc::new(driver), Route::Primary, &config).unwrap(), folder)
}

/// Waits until the pool is so, with a bound that is far from what it takes.
async fn until(what: &str, is_so: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < give_up, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_wanted_few_are_kept_open() {
    let (pool, _folder) = pool(|config| config.minimum_idle(3).idle_timeout(MOMENT));
    until("three are opened", || pool.status().idle == 3).await;
    let held = [pool.checkout("a").await.unwrap(), pool.checkout("b").await.unwrap()];
    until("others take the place of the lent ones", || pool.status().idle == 3).await;
    assert_eq!(pool.status().size, 5);
    drop(held);
    until("those beyond are closed when unused", || pool.status().size == 3).await;
    tokio::time::sleep(MOMENT * 3).await;
    assert_eq!((pool.status().size, pool.status().idle), (3, 3));
}

#[tokio::test]
async fn a_broken_one_is_replaced() {
    let (pool, _folder) = pool(|config| config.minimum_idle(1).idle_timeout(MOMENT));
    until("one is opened", || pool.status().idle == 1).await;
    let mut loan = pool.checkout("breaks").await.unwrap();
    loan.begin().unwrap();
    drop(loan);
    until("a new one is opened", || pool.status().idle == 1).await;
}

#[tokio::test]
async fn no_more_are_opened_than_there_may_be() {
    let (pool, _folder) = pool(|config| config.minimum_idle(5).idle_timeout(MOMENT));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(pool.checkout("holds").await.unwrap());
    }
    until("the last one is opened", || pool.status().idle == 1).await;
    tokio::time::sleep(MOMENT * 2).await;
    assert_eq!(pool.status().size, 5);
    let _last = tokio::time::timeout(Duration::from_secs(5), pool.checkout("last")).await.unwrap();
}

#[tokio::test]
async fn unused_connections_are_closed_and_used_ones_are_not() {
    let (pool, _folder) = pool(|config| config.idle_timeout(MOMENT));
    let held = pool.checkout("holds").await.unwrap();
    let others = (pool.checkout("a").await.unwrap(), pool.checkout("b").await.unwrap());
    assert_eq!(pool.status().size, 3);
    drop(others);
    until("both are closed", || pool.status().size == 1).await;
    let back = Instant::now();
    drop(held);
    let idle = pool.status().idle;
    // A machine that was busy elsewhere may have let the time pass already.
    assert!(idle == 1 || back.elapsed() >= MOMENT, "its time begins when it is given back");
    until("and the last one", || pool.status().size == 0).await;
}

#[tokio::test]
async fn zero_means_never() {
    let never =
        |config: DataSourceConfig| config.idle_timeout(Duration::ZERO).max_lifetime(Duration::ZERO);
    let (pool, _folder) = pool(never);
    assert!(pool.upkeep.0.is_none(), "nothing to look after, so no task");
    drop(pool.checkout("a").await.unwrap());
    tokio::time::sleep(MOMENT).await;
    assert_eq!(pool.status().idle, 1);
}

#[tokio::test]
async fn old_connections_are_closed_even_when_they_are_wanted() {
    let (pool, _folder) = pool(|config| config.max_lifetime(MOMENT).idle_timeout(Duration::ZERO));
    let held = pool.checkout("holds").await.unwrap();
    drop(pool.checkout("a").await.unwrap());
    until("the idle one is closed", || pool.status().size == 1).await;
    tokio::time::sleep(MOMENT).await;
    assert_eq!(pool.status().size, 1, "a lent one is left to its holder");
    drop(held);
    let loan = pool.checkout("b").await.unwrap();
    assert!(!loan.is_used(), "it is not lent again");
}

#[tokio::test]
async fn connections_do_not_all_end_at_once() {
    let (pool, _folder) = pool(|config| config.max_lifetime(Duration::from_secs(1_000)));
    let manager = pool.inner.manager();
    let now = Instant::now();
    let ends: Vec<_> = (0..50).map(|_| manager.expiry().unwrap() - now).collect();
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(*first >= Duration::from_secs(900) && *last <= Duration::from_secs(1_001));
    assert!(*last - *first > Duration::from_secs(20), "{first:?} to {last:?}");
}

#[tokio::test]
async fn who_holds_for_too_long_is_reported_once() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let (pool, _folder) = pool(|config| config.leak_detection_threshold(MOMENT));
    let asked = Instant::now();
    let held = pool.checkout("report of the year").await.unwrap();
    let overdue = pool.status().overdue;
    // A machine that was busy elsewhere may have let the time pass already.
    assert!(overdue.is_empty() || asked.elapsed() >= MOMENT, "{overdue:?}");
    until("it is reported", || !log.lines().is_empty()).await;
    tokio::time::sleep(MOMENT * 3).await;
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].contains("report of the year") && lines[0].contains("pool.db"), "{lines:?}");
    assert!(lines[0].contains("held="), "{lines:?}");
    let overdue = pool.status().overdue;
    assert!(overdue[0].0 == "report of the year" && overdue[0].1 >= MOMENT, "{overdue:?}");
    drop(held);
    assert!(pool.status().overdue.is_empty());
}

#[tokio::test]
async fn the_task_ends_with_the_pool() {
    for close in [true, false] {
        let (pool, _folder) = pool(|config| config.minimum_idle(1));
        until("it runs", || pool.status().idle == 1).await;
        let task = pool.upkeep.0.clone().unwrap();
        let copy = pool.clone();
        assert!(!task.is_finished());
        if close {
            copy.close();
        }
        drop(copy);
        assert_eq!(close, pool.inner.is_closed());
        drop(pool);
        until("the task ends", || task.is_finished()).await;
    }
}

/// What was warned of.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Line(String);
        impl Visit for Line {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                self.0.push_str(&format!("{}={value:?} ", field.name()));
            }
        }
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}
