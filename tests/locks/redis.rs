//! What only the locks on Redis have to show: the data at the server, several processes, outages,
//! and servers that are rejected.

use std::time::Duration;

use ekbatan::lock::{Attempt, Grant, GrantRequest, LockBackend, LockProvider};
use ekbatan_lock_redis::RedisBackend;
use ekbatan_testkit::RedisServer;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, FromRedisValue, cmd};
use uuid::Uuid;

mod connections;
mod handover;
mod outages;
mod ownership;
mod processes;
mod refusals;

/// The namespace of one test.
struct Space {
    url: String,
    namespace: String,
}

impl Space {
    fn on(server: &RedisServer) -> Self {
        Self { url: server.url(), namespace: Uuid::new_v4().to_string() }
    }

    async fn shared() -> Self {
        Self::on(RedisServer::shared().await.unwrap())
    }

    async fn backend(&self) -> RedisBackend {
        RedisBackend::connect(&self.url, &self.namespace).await.unwrap()
    }

    /// A provider, as one process connects it.
    async fn locks(&self) -> LockProvider {
        LockProvider::new(self.backend().await, "test")
    }

    /// The keys of locks that are held.
    async fn stored(&self) -> Vec<String> {
        let mut server = connection(&self.url).await;
        asked(&mut server, &["KEYS", &format!("{}:{{*", self.namespace)]).await
    }
}

/// A connection that waits for a server which is busy: the limits of the client are short.
pub async fn connection(url: &str) -> MultiplexedConnection {
    let patient =
        AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection_with_config(&patient).await.unwrap()
}

pub async fn asked<T: FromRedisValue>(server: &mut MultiplexedConnection, words: &[&str]) -> T {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    command.query_async(server).await.unwrap()
}

fn request(term: Duration) -> GrantRequest {
    GrantRequest::new(Uuid::new_v4(), "a | test", term)
}

/// Acquires a free key.
async fn taken(backend: &RedisBackend, key: &str, term: Duration) -> Grant {
    match backend.try_grant(key, &request(term)).await.unwrap() {
        Attempt::Granted(grant) => grant,
        busy => panic!("{key} is not free: {busy:?}"),
    }
}
