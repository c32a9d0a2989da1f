//! What only the locks in HBase have to show: the queue in the row, ownership, outages, tables and
//! clusters that are rejected, and the two hazards of HBase as a store of locks.

use std::time::Duration;

use ekbatan::lock::{Attempt, Grant, GrantRequest, HBaseBackend, LockBackend};
use ekbatan_testkit::HBaseServer;
use tokio::sync::OnceCell;
use uuid::Uuid;

mod asking_again;
mod away;
mod hazards;
mod outages;
mod ownership;
mod queue;
mod refusals;

/// The shared server, as an address that names its cluster.
pub async fn url() -> String {
    static CLUSTER: OnceCell<String> = OnceCell::const_new();
    let server = HBaseServer::shared().await.unwrap();
    let cluster = CLUSTER.get_or_init(async || server.cluster().await.unwrap()).await;
    format!("{}/?cluster={cluster}", server.url())
}

/// A backend on the shared server, as one process connects it.
pub async fn backend(namespace: &str) -> HBaseBackend {
    HBaseBackend::connect(&url().await, namespace).await.unwrap()
}

fn request(term: Duration) -> GrantRequest {
    GrantRequest::new(Uuid::new_v4(), "a | test", term)
}

/// Acquires a free key.
async fn taken(backend: &HBaseBackend, key: &str, term: Duration) -> Grant {
    match backend.try_grant(key, &request(term)).await.unwrap() {
        Attempt::Granted(grant) => grant,
        busy => panic!("{key} is not free: {busy:?}"),
    }
}
