//! Lanes over a real file, with a driver that panics or refuses.

use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use uuid::Uuid;

use super::Lanes;
use crate::config::DataSourceConfig;
use crate::db::driver::{Connection, Driver, Route};
use crate::db::sqlite::SqliteDriver;
use crate::db::{ActionId, Capabilities, CommitBatch, CommitError, DbError, DbErrorKind, Syntax};

/// Panics when it connects, as often as is said.
struct PanickingDriver {
    inner: SqliteDriver,
    panics: AtomicUsize,
}

#[async_trait]
impl Driver for PanickingDriver {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn syntax(&self) -> &dyn Syntax {
        self.inner.syntax()
    }

    async fn connect(&self, route: Route) -> Result<Box<dyn Connection>, DbError> {
        let left = self.panics.load(Ordering::SeqCst);
        if left > 0 {
            self.panics.store(left - 1, Ordering::SeqCst);
            panic!("the driver panics");
        }
        self.inner.connect(route).await
    }

    fn address(&self) -> &str {
        self.inner.address()
    }
}

/// Refuses to connect.
struct RefusingDriver(SqliteDriver);

#[async_trait]
impl Driver for RefusingDriver {
    fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    fn syntax(&self) -> &dyn Syntax {
        self.0.syntax()
    }

    async fn connect(&self, _: Route) -> Result<Box<dyn Connection>, DbError> {
        let full = DbError::new(DbErrorKind::Unavailable, "no place is free").with_code("53300");
        Err(full.with_source(std::io::Error::other("the server is full")))
    }

    fn address(&self) -> &str {
        self.0.address()
    }
}

fn lanes_over<D: Driver>(driver: impl FnOnce(SqliteDriver) -> D) -> (Lanes, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("lanes.db").display());
    let config = DataSourceConfig::new(url);
    let driver = driver(SqliteDriver::new(&config).unwrap());
    (Lanes::start(Arc::new(driver), &config), folder)
}

fn lanes(panics: usize) -> (Lanes, tempfile::TempDir) {
    lanes_over(|inner| PanickingDriver { inner, panics: AtomicUsize::new(panics) })
}

/// A batch that writes nothing.
fn batch() -> CommitBatch {
    CommitBatch {
        action: ActionId(Uuid::now_v7()),
        changes: Vec::new(),
        expected: Vec::new(),
        records: Vec::new(),
        fences: Vec::new(),
        traceable: true,
        turns: Vec::new(),
    }
}

async fn bounded<T>(what: &str, future: impl Future<Output = T>) -> T {
    let most = Duration::from_secs(60);
    tokio::time::timeout(most, future).await.unwrap_or_else(|_| panic!("no end of: {what}"))
}

#[tokio::test]
async fn a_lane_that_panics_is_replaced_and_its_batch_goes_on() {
    let (lanes, _folder) = lanes(1);
    bounded("a commit whose lane panicked", lanes.submit(batch())).await.unwrap();
    bounded("the next commit", lanes.submit(batch())).await.unwrap();
    bounded("close", lanes.close()).await;
}

#[tokio::test]
async fn a_batch_that_kills_its_lanes_is_refused() {
    let (lanes, _folder) = lanes(2);
    match bounded("a commit whose lanes panicked", lanes.submit(batch())).await {
        Err(CommitError::Refused(error)) => assert_eq!(error.kind(), DbErrorKind::Unavailable),
        other => panic!("{other:?}"),
    }
    bounded("the next commit", lanes.submit(batch())).await.unwrap();
    bounded("close", lanes.close()).await;
}

#[tokio::test]
async fn every_caller_hears_the_code_and_the_cause_of_a_failure_that_they_share() {
    let (lanes, _folder) = lanes_over(RefusingDriver);
    for refused in join_all([lanes.submit(batch()), lanes.submit(batch())]).await {
        let Err(CommitError::Refused(error)) = refused else { panic!("{refused:?}") };
        assert_eq!((error.kind(), error.code()), (DbErrorKind::Unavailable, Some("53300")));
        assert_eq!(error.to_string(), "no place is free; nothing was written [53300]");
        let cause = error.source().map(ToString::to_string);
        assert_eq!(cause.as_deref(), Some("the server is full"));
    }
    bounded("close", lanes.close()).await;
}
