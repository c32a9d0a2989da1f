//! What only the locks in etcd have to show: the queue at the server, ownership, outages and lost
//! data, and clusters that are rejected.

use std::time::Duration;

use ekbatan::lock::{Attempt, Grant, GrantRequest, LockBackend, LockProvider};
use ekbatan_lock_etcd::EtcdBackend;
use ekbatan_testkit::EtcdServer;
use uuid::Uuid;

mod epochs;
mod outages;
mod ownership;
mod queue;
mod refusals;
mod spare_leases;

/// The namespace of one test.
struct Space<'s> {
    server: &'s EtcdServer,
    url: String,
    namespace: String,
}

impl<'s> Space<'s> {
    fn on(server: &'s EtcdServer) -> Self {
        Self { server, url: server.url(), namespace: Uuid::new_v4().to_string() }
    }

    async fn shared() -> Space<'static> {
        Space::on(EtcdServer::shared().await.unwrap())
    }

    async fn backend(&self) -> EtcdBackend {
        EtcdBackend::connect(&self.url, &self.namespace).await.unwrap()
    }

    /// A provider, as one process connects it.
    async fn locks(&self) -> LockProvider {
        LockProvider::new(self.backend().await, "test")
    }

    /// The places in all queues.
    async fn places(&self) -> Vec<String> {
        let epoch = format!("{}/epoch", self.namespace);
        let keys = self.server.keys(&format!("{}/", self.namespace)).await.unwrap();
        keys.into_iter().filter(|key| *key != epoch).collect()
    }

    /// Waits until the queues have so many places together.
    async fn until_places(&self, count: usize) {
        support::until("the queues have the places", async || self.places().await.len() == count)
            .await;
    }
}

fn request(term: Duration) -> GrantRequest {
    GrantRequest::new(Uuid::new_v4(), "a | test", term)
}

/// Acquires a free key.
async fn taken(backend: &EtcdBackend, key: &str, term: Duration) -> Grant {
    match backend.try_grant(key, &request(term)).await.unwrap() {
        Attempt::Granted(grant) => grant,
        busy => panic!("{key} is not free: {busy:?}"),
    }
}
