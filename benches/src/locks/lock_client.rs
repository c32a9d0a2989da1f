//! A client that acquires the key, by hand or through ekbatan.

use std::sync::Arc;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider};
use tokio::sync::{Mutex, OwnedMutexGuard};

#[cfg(feature = "aerospike")]
use super::aerospike::AerospikeRecord;
use super::etcd::EtcdMutex;
use super::key::MAX_HOLD;
#[cfg(feature = "mongodb")]
use super::mongodb::MongoDocument;
use super::mysql::{MySqlRow, NamedLock};
use super::postgres::{Advisory, LeaseRow};
use super::redis::SetNx;
use super::sqlite::SqliteRow;
use crate::failure::Failure;

pub enum LockClient {
    Mutex(Arc<Mutex<()>>),
    Advisory(Advisory),
    LeaseRow(LeaseRow),
    SetNx(SetNx),
    NamedLock(NamedLock),
    MySqlRow(MySqlRow),
    SqliteRow(SqliteRow),
    EtcdMutex(EtcdMutex),
    #[cfg(feature = "hbase")]
    CheckAndMutate(super::hbase::CheckAndMutate),
    #[cfg(feature = "mongodb")]
    MongoDocument(MongoDocument),
    #[cfg(feature = "aerospike")]
    AerospikeRecord(AerospikeRecord),
    Ekbatan(LockProvider, LockKey),
}

/// What a client holds between acquire and release.
pub enum KeyGuard {
    Guard { _guard: OwnedMutexGuard<()> },
    Lease(Lease),
    AtTheServer,
}

impl LockClient {
    pub async fn acquire(&mut self) -> Result<KeyGuard, Failure> {
        match self {
            Self::Mutex(mutex) => {
                return Ok(KeyGuard::Guard { _guard: mutex.clone().lock_owned().await });
            }
            Self::Ekbatan(locks, key) => {
                return Ok(KeyGuard::Lease(locks.acquire(key, MAX_HOLD).await?));
            }
            Self::Advisory(advisory) => advisory.acquire().await?,
            Self::LeaseRow(row) => row.acquire().await?,
            Self::SetNx(set) => set.acquire().await?,
            Self::NamedLock(lock) => lock.acquire().await?,
            Self::MySqlRow(row) => row.acquire().await?,
            Self::SqliteRow(row) => row.acquire().await?,
            Self::EtcdMutex(mutex) => mutex.acquire().await?,
            #[cfg(feature = "hbase")]
            Self::CheckAndMutate(row) => row.acquire().await?,
            #[cfg(feature = "mongodb")]
            Self::MongoDocument(document) => document.acquire().await?,
            #[cfg(feature = "aerospike")]
            Self::AerospikeRecord(record) => record.acquire().await?,
        }
        Ok(KeyGuard::AtTheServer)
    }

    pub async fn release(&mut self, held: KeyGuard) -> Result<(), Failure> {
        let still_held = match (self, held) {
            (_, KeyGuard::Guard { .. }) => true,
            (_, KeyGuard::Lease(lease)) => lease.release().await,
            (Self::Advisory(advisory), _) => advisory.release().await?,
            (Self::LeaseRow(row), _) => row.release().await?,
            (Self::SetNx(set), _) => set.release().await?,
            (Self::NamedLock(lock), _) => lock.release().await?,
            (Self::MySqlRow(row), _) => row.release().await?,
            (Self::SqliteRow(row), _) => row.release().await?,
            (Self::EtcdMutex(mutex), _) => mutex.release().await?,
            #[cfg(feature = "hbase")]
            (Self::CheckAndMutate(row), _) => row.release().await?,
            #[cfg(feature = "mongodb")]
            (Self::MongoDocument(document), _) => document.release().await?,
            #[cfg(feature = "aerospike")]
            (Self::AerospikeRecord(record), _) => record.release().await?,
            (Self::Mutex(_) | Self::Ekbatan(..), KeyGuard::AtTheServer) => false,
        };
        if still_held { Ok(()) } else { Err("the key was lost while it was held".into()) }
    }

    pub async fn close(self) {
        if let Self::Ekbatan(locks, _) = self {
            locks.close().await;
        }
    }
}
