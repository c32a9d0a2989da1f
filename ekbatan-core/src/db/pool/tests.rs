//! Pools over real files.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::Notify;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use super::Pool;
use crate::config::DataSourceConfig;
use crate::db::driver::{Connection, Driver};
use crate::db::sqlite::SqliteDriver;
use crate::db::{Capabilities, DbError, DbErrorKind, Route, Syntax};

const MOMENT: Duration = Duration::from_millis(80);

/// A pool over its own file, in a temporary folder.
fn pool(set: impl FnOnce(DataSourceConfig) -> DataSourceConfig) -> (Pool, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("pool.db").display());
    let config = set(DataSourceConfig::new(url).maximum_pool_size(5));
    let driver = SqliteDriver::new(&config).unwrap();
    (Pool::new(Arc::new(driver), Route::Primary, "primary-config", &config).unwrap(), folder)
}

/// The error of a caller for whom no connection came free.
async fn timed_out(pool: &Pool) -> String {
    let refused = pool.checkout("waits").await.err().expect("no place is free");
    assert_eq!(refused.kind(), DbErrorKind::PoolTimeout);
    refused.to_string()
}

/// Waits until the condition holds, with a bound far above the time that it takes.
async fn until(what: &str, holds: impl Fn() -> bool) {
    let give_up = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < give_up, "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn minimum_idle_connections_are_kept_open() {
    let (pool, _folder) = pool(|config| config.minimum_idle(3).idle_timeout(MOMENT));
    until("three connections are opened", || pool.status().idle == 3).await;
    let held = [pool.checkout("a").await.unwrap(), pool.checkout("b").await.unwrap()];
    until("lent connections are replaced by new idle ones", || pool.status().idle == 3).await;
    assert_eq!(pool.status().size, 5);
    drop(held);
    until("surplus connections are closed when idle", || pool.status().size == 3).await;
    tokio::time::sleep(MOMENT * 3).await;
    assert_eq!((pool.status().size, pool.status().idle), (3, 3));
}

#[tokio::test]
async fn a_broken_connection_is_replaced() {
    let (pool, _folder) = pool(|config| config.minimum_idle(1).idle_timeout(MOMENT));
    until("one connection is opened", || pool.status().idle == 1).await;
    let mut loan = pool.checkout("breaks").await.unwrap();
    loan.mark_busy().unwrap();
    drop(loan);
    until("a new connection is opened", || pool.status().idle == 1).await;
}

#[tokio::test]
async fn no_more_connections_are_opened_than_the_maximum() {
    let (pool, _folder) = pool(|config| config.minimum_idle(5).idle_timeout(MOMENT));
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(pool.checkout("holds").await.unwrap());
    }
    until("the last connection is opened", || pool.status().idle == 1).await;
    tokio::time::sleep(MOMENT * 2).await;
    assert_eq!(pool.status().size, 5);
    let last = tokio::time::timeout(Duration::from_secs(60), pool.checkout("last")).await;
    let _last = last.expect("a place is free").unwrap();
}

#[tokio::test]
async fn idle_connections_are_closed_and_lent_ones_are_not() {
    let (pool, _folder) = pool(|config| config.idle_timeout(MOMENT));
    let held = pool.checkout("holds").await.unwrap();
    let others = (pool.checkout("a").await.unwrap(), pool.checkout("b").await.unwrap());
    assert_eq!(pool.status().size, 3);
    drop(others);
    until("both are closed", || pool.status().size == 1).await;
    let back = Instant::now();
    drop(held);
    let idle = pool.status().idle;
    // On a busy machine the time may have passed already.
    assert!(idle == 1 || back.elapsed() >= MOMENT, "its idle time starts when it is given back");
    until("the last one is closed", || pool.status().size == 0).await;
}

#[tokio::test]
async fn zero_disables_a_timeout() {
    let never =
        |config: DataSourceConfig| config.idle_timeout(Duration::ZERO).max_lifetime(Duration::ZERO);
    let (pool, _folder) = pool(never);
    assert!(pool.upkeep.task().is_none(), "nothing to do, so no task");
    drop(pool.checkout("a").await.unwrap());
    tokio::time::sleep(MOMENT).await;
    assert_eq!(pool.status().idle, 1);
}

#[tokio::test]
async fn expired_connections_are_closed_even_if_minimum_idle_needs_them() {
    let (pool, _folder) = pool(|config| config.max_lifetime(MOMENT).idle_timeout(Duration::ZERO));
    let held = pool.checkout("holds").await.unwrap();
    drop(pool.checkout("a").await.unwrap());
    until("the idle one is closed", || pool.status().size == 1).await;
    tokio::time::sleep(MOMENT).await;
    assert_eq!(pool.status().size, 1, "a lent connection is left to its holder");
    drop(held);
    let loan = pool.checkout("b").await.unwrap();
    assert!(!loan.is_used(), "it is not lent again");
}

#[tokio::test]
async fn connections_do_not_all_expire_at_once() {
    let (pool, _folder) = pool(|config| config.max_lifetime(Duration::from_secs(1_000)));
    let manager = pool.inner.manager();
    let now = Instant::now();
    let ends: Vec<_> = (0..50).map(|_| manager.expiry().unwrap() - now).collect();
    let (first, last) = (ends.iter().min().unwrap(), ends.iter().max().unwrap());
    assert!(*first >= Duration::from_secs(900) && *last <= Duration::from_secs(1_001));
    assert!(*last - *first > Duration::from_secs(20), "{first:?} to {last:?}");
}

#[tokio::test]
async fn a_holder_that_exceeds_the_threshold_is_reported_once() {
    let log = Log::default();
    // With a second dispatcher, a callsite that another test reaches first is not disabled.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(log.clone());
    let (pool, _folder) = pool(|config| config.leak_detection_threshold(MOMENT));
    let asked = Instant::now();
    let held = pool.checkout("report of the year").await.unwrap();
    let overdue = pool.status().overdue;
    // On a busy machine the time may have passed already.
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

#[test]
fn the_task_is_started_again_after_its_runtime_has_ended() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (pool, _folder) = first.block_on(async { pool(|config| config.minimum_idle(1)) });
    let task = pool.upkeep.task().unwrap();
    drop(first);
    assert!(task.is_finished());
    runtime().block_on(async {
        drop(pool.checkout("a").await.unwrap());
        assert!(!pool.upkeep.task().unwrap().is_finished());
    });
}

#[tokio::test]
async fn closing_waits_for_connections_on_loan() {
    let (pool, _folder) = pool(|config| config);
    let held = pool.checkout("holds").await.unwrap();
    let mut busy = pool.checkout("breaks").await.unwrap();
    busy.mark_busy().unwrap();
    let copy = pool.clone();
    let closing = tokio::spawn(async move { copy.close().await });
    until("the pool is closed", || pool.inner.is_closed()).await;
    drop(busy);
    assert!(!closing.is_finished(), "a connection is on loan");
    drop(held);
    until("every connection is closed", || closing.is_finished()).await;
}

#[tokio::test]
async fn closing_does_not_wait_for_ever() {
    let log = Log::default();
    // With a second dispatcher, a callsite that another test reaches first is not disabled.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(log.clone());
    let (pool, _folder) = pool(|config| config.connection_timeout(MOMENT));
    let _held = loop {
        // On a slow machine opening the connection takes longer.
        if let Ok(held) = pool.checkout("report of the year").await {
            break held;
        }
    };
    pool.close().await;
    let lines = log.lines();
    assert!(lines.iter().any(|line| line.contains("report of the year")), "{lines:?}");
}

#[tokio::test]
async fn a_timeout_names_the_holders_and_the_setting_that_helps() {
    let (pool, _folder) = pool(|config| config.maximum_pool_size(2).connection_timeout(MOMENT));
    let held = async |holder| loop {
        // On a slow machine opening the connection takes longer.
        if let Ok(held) = pool.checkout(holder).await {
            return held;
        }
    };
    let _held = [held("report").await, held("import").await];
    let why = timed_out(&pool).await;
    for part in [
        "pool.db came free within 80ms (connection-timeout of primary-config)",
        "all 2 are held, by report for ",
        ", import for ",
        "; hold them shorter, or raise maximum-pool-size of primary-config",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
}

#[tokio::test]
async fn a_timeout_beside_callers_that_connect_advises_no_larger_pool() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("pool.db").display());
    let config = DataSourceConfig::new(url).maximum_pool_size(1).connection_timeout(MOMENT);
    let (inner, asked) = (SqliteDriver::new(&config).unwrap(), Arc::new(Notify::new()));
    let driver = SilentDriver { inner, asked: asked.clone() };
    let pool = Pool::new(Arc::new(driver), Route::Replica, "secondary-config", &config).unwrap();
    let connecting = tokio::spawn({
        let pool = pool.clone();
        async move { pool.checkout("connects").await.map(drop) }
    });
    asked.notified().await;
    let why = timed_out(&pool).await;
    let end = "by a caller that still connects; see whether the server accepts connections";
    assert!(why.contains("of secondary-config") && why.ends_with(end), "{why}");
    connecting.abort();
}

/// Its server accepts a connection and never answers.
struct SilentDriver {
    inner: SqliteDriver,
    asked: Arc<Notify>,
}

#[async_trait]
impl Driver for SilentDriver {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn syntax(&self) -> &dyn Syntax {
        self.inner.syntax()
    }

    async fn connect(&self, _: Route) -> Result<Box<dyn Connection>, DbError> {
        self.asked.notify_one();
        std::future::pending().await
    }

    fn address(&self) -> &str {
        self.inner.address()
    }
}

#[tokio::test]
async fn the_task_ends_with_the_pool() {
    for close in [true, false] {
        let (pool, _folder) = pool(|config| config.minimum_idle(1));
        until("it runs", || pool.status().idle == 1).await;
        let task = pool.upkeep.task().unwrap();
        let copy = pool.clone();
        assert!(!task.is_finished());
        if close {
            copy.close().await;
        }
        drop(copy);
        assert_eq!(close, pool.inner.is_closed());
        drop(pool);
        until("the task ends", || task.is_finished()).await;
    }
}

/// The warnings.
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
