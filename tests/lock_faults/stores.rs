//! The providers whose clients and servers are heavy. Each is there with its feature, which
//! `scripts/test stores` enables.

use ekbatan::lock::LockProvider;
use ekbatan_testkit::{AerospikeServer, FerretDbServer};

use crate::providers::Kind;

/// A server of one of these providers.
pub enum StoreServer {
    #[cfg_attr(not(feature = "mongodb"), expect(dead_code, reason = "its tests need the feature"))]
    FerretDb(FerretDbServer),
    #[cfg_attr(
        not(feature = "aerospike"),
        expect(dead_code, reason = "its tests need the feature")
    )]
    Aerospike(AerospikeServer),
}

impl StoreServer {
    pub async fn start(kind: Kind) -> Self {
        match kind {
            #[cfg(feature = "mongodb")]
            Kind::MongoDb => Self::FerretDb(FerretDbServer::start().await.unwrap()),
            #[cfg(feature = "aerospike")]
            Kind::Aerospike => Self::Aerospike(AerospikeServer::start().await.unwrap()),
            _ => unreachable!("{kind:?} is built without its feature, or is no such provider"),
        }
    }

    pub fn url(&self) -> String {
        match self {
            Self::FerretDb(server) => server.url(),
            // As it is behind a proxy: the client would otherwise ask the server for its address.
            Self::Aerospike(server) => format!("{}?seed-only=true", server.url()),
        }
    }

    pub async fn kill(&self) {
        match self {
            Self::FerretDb(server) => server.kill().await.unwrap(),
            Self::Aerospike(server) => server.kill().await.unwrap(),
        }
    }

    pub async fn restart(&self) {
        match self {
            Self::FerretDb(server) => server.restart().await.unwrap(),
            Self::Aerospike(server) => server.restart().await.unwrap(),
        }
    }
}

/// A provider, as one process connects it.
pub async fn connect(kind: Kind, url: &str) -> LockProvider {
    let _ = url;
    match kind {
        #[cfg(feature = "mongodb")]
        Kind::MongoDb => {
            use ekbatan_lock_mongodb::MongoDbBackend;
            let backend = MongoDbBackend::connect(url, MongoDbBackend::NAMESPACE).await.unwrap();
            LockProvider::new(backend, "test")
        }
        #[cfg(feature = "aerospike")]
        Kind::Aerospike => {
            use ekbatan_lock_aerospike::AerospikeBackend;
            let backend =
                AerospikeBackend::connect(url, AerospikeBackend::NAMESPACE).await.unwrap();
            LockProvider::new(backend, "test")
        }
        _ => unreachable!("{kind:?} is built without its feature, or is no such provider"),
    }
}
