//! Lanes over a real file, with a driver that panics.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
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

fn lanes(panics: usize) -> (Lanes, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("lanes.db").display());
    let config = DataSourceConfig::new(url);
    let driver = PanickingDriver {
        inner: SqliteDriver::new(&config).unwrap(),
        panics: AtomicUsize::new(panics),
    };
    (Lanes::start(Arc::new(driver), &config), folder)
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
