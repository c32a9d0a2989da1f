//! The server of the lock: one that the caller names, or a private one.

use clap::ValueEnum;
use ekbatan::config::{DataSourceConfig, LockConfig, LockProviderKind};
use ekbatan_testkit::{AerospikeServer, EtcdServer, FerretDbServer, HBaseServer, ServerError};

/// Where the lock is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LockPlace {
    /// In the memory of this process.
    InProcess,
    /// In etcd.
    Etcd,
    /// In MongoDB; the private server is a FerretDB.
    Mongodb,
    /// In Aerospike; a private server needs `EKBATAN_AEROSPIKE_BIN`.
    Aerospike,
    /// In HBase.
    #[value(name = "hbase")]
    HBase,
}

/// A running server, if the lock needs one. A private one is removed when this is dropped.
pub struct LockServer {
    url: Option<String>,
    _private: Private,
}

#[expect(dead_code, reason = "dropped at the end, and only then")]
enum Private {
    None,
    Etcd(EtcdServer),
    FerretDb(FerretDbServer),
    Aerospike(AerospikeServer),
    HBase(HBaseServer),
}

impl LockServer {
    pub async fn start(place: LockPlace, named: Option<String>) -> Result<Self, ServerError> {
        if place == LockPlace::InProcess || named.is_some() {
            return Ok(Self { url: named, _private: Private::None });
        }
        let (url, private) = match place {
            LockPlace::InProcess => return Ok(Self { url: None, _private: Private::None }),
            LockPlace::Etcd => {
                let server = EtcdServer::start().await?;
                (server.url(), Private::Etcd(server))
            }
            LockPlace::Mongodb => {
                let server = FerretDbServer::start().await?;
                (server.url(), Private::FerretDb(server))
            }
            LockPlace::Aerospike => {
                let server = AerospikeServer::start().await?;
                (server.url(), Private::Aerospike(server))
            }
            LockPlace::HBase => {
                let server = HBaseServer::start().await?;
                (server.url(), Private::HBase(server))
            }
        };
        Ok(Self { url: Some(url), _private: private })
    }

    /// The `lock-config`. The scheme of the address says which provider it is.
    pub fn config(&self) -> DataSourceConfig {
        match &self.url {
            Some(url) => DataSourceConfig::new(url),
            None => LockConfig::of(LockProviderKind::InProcess).into(),
        }
    }
}
