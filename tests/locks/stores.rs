//! The providers whose clients and servers are heavy, and what each of them has to show. Each is
//! there with its feature, which `scripts/test stores` enables.

#[cfg(any(feature = "mongodb", feature = "aerospike", feature = "hbase"))]
mod configured;
#[cfg(any(feature = "mongodb", feature = "aerospike", feature = "hbase"))]
mod outages;
#[cfg(any(feature = "mongodb", feature = "aerospike", feature = "hbase"))]
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
        #[cfg(feature = "hbase")]
        Kind::HBase => crate::hbase::url().await,
        _ => unreachable!("{kind:?} is built without its feature, or is no such provider"),
    }
}

/// The address of that server behind a proxy, and the proxy.
pub async fn proxied(kind: Kind) -> (String, Proxy) {
    #[cfg(feature = "hbase")]
    if kind == Kind::HBase {
        let server = ekbatan_testkit::HBaseServer::shared().await.unwrap();
        let (proxy, url) = server.behind_proxy().await.unwrap();
        return (url, proxy);
    }
    let url = url(kind).await;
    let address = url.split(['@', '/']).find(|part| part.starts_with("127.")).unwrap();
    let proxy = Proxy::start(address).await.unwrap();
    (proxy.url_for(&url), proxy)
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
        #[cfg(feature = "hbase")]
        Kind::HBase => {
            Box::new(ekbatan_lock_hbase::HBaseBackend::connect(url, namespace).await.unwrap())
        }
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
        #[cfg(feature = "hbase")]
        Kind::HBase => LockProvider::new(
            ekbatan_lock_hbase::HBaseBackend::connect(url, namespace).await.unwrap(),
            "test",
        ),
        _ => unreachable!("{kind:?} is built without its feature, or is no such provider"),
    }
}
