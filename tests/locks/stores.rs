//! The providers whose clients and servers are heavy, and what each of them has to show. Each is
//! there with its feature, which `scripts/test stores` enables.

#[cfg(any(feature = "mongodb", feature = "aerospike"))]
mod configured;
#[cfg(any(feature = "mongodb", feature = "aerospike"))]
mod outages;
#[cfg(any(feature = "mongodb", feature = "aerospike"))]
mod ownership;

use ekbatan::lock::{LockBackend, LockProvider};
use ekbatan_testkit::Proxy;

use crate::providers::Kind;

/// The address of the server that all tests share.
pub async fn url(kind: Kind) -> String {
    match kind {
        #[cfg(feature = "mongodb")]
        Kind::MongoDb => ekbatan_testkit::FerretDbServer::shared().await.unwrap().url(),
        // As it is behind a proxy: the client would otherwise ask the server for its address.
        #[cfg(feature = "aerospike")]
        Kind::Aerospike => {
            let server = ekbatan_testkit::AerospikeServer::shared().await.unwrap();
            format!("{}?seed-only=true", server.url())
        }
        _ => unreachable!("{kind:?} is built without its feature, or is no such provider"),
    }
}

/// A proxy in front of the server at this address, and the address behind the proxy.
pub async fn proxied(url: &str) -> (String, Proxy) {
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
    let proxy = Proxy::start(address).await.unwrap();
    (proxy.url_for(url), proxy)
}

/// A backend, as one process connects it.
pub async fn backend(kind: Kind, url: &str, namespace: &str) -> Box<dyn LockBackend> {
    let _ = (url, namespace);
    match kind {
        #[cfg(feature = "mongodb")]
        Kind::MongoDb => {
            Box::new(ekbatan_lock_mongodb::MongoDbBackend::connect(url, namespace).await.unwrap())
        }
        #[cfg(feature = "aerospike")]
        Kind::Aerospike => Box::new(
            ekbatan_lock_aerospike::AerospikeBackend::connect(url, namespace).await.unwrap(),
        ),
        _ => unreachable!("{kind:?} is built without its feature, or is no such provider"),
    }
}

/// A provider, as one process connects it.
pub async fn provider(kind: Kind, url: &str, namespace: &str) -> LockProvider {
    let _ = (url, namespace);
    match kind {
        #[cfg(feature = "mongodb")]
        Kind::MongoDb => LockProvider::new(
            ekbatan_lock_mongodb::MongoDbBackend::connect(url, namespace).await.unwrap(),
            "test",
        ),
        #[cfg(feature = "aerospike")]
        Kind::Aerospike => LockProvider::new(
            ekbatan_lock_aerospike::AerospikeBackend::connect(url, namespace).await.unwrap(),
            "test",
        ),
        _ => unreachable!("{kind:?} is built without its feature, or is no such provider"),
    }
}
