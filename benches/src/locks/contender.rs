//! One of those who want the key, by hand or by a provider.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::lock::{KeyedLockProvider, Lease, LockKey, LockProvider};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::postgres::{Advisory, LeaseRow};
use super::redis::SetNx;
use crate::Failure;

/// The key that all of them want.
pub const KEY: &str = "bench";
/// For how long it may be held. Nobody holds it for so long.
pub const MAX_HOLD: Duration = Duration::from_secs(30);

pub enum Contender {
    Mutex(Arc<Mutex<()>>),
    Advisory(Advisory),
    LeaseRow(LeaseRow),
    SetNx(SetNx),
    Ekbatan(LockProvider, LockKey),
}

/// What a contender has while it has the key.
pub enum Held {
    Guard { _guard: OwnedMutexGuard<()> },
    Lease(Lease),
    AtTheServer,
}

impl Contender {
    pub async fn take(&mut self) -> Result<Held, Failure> {
        match self {
            Self::Mutex(mutex) => {
                return Ok(Held::Guard { _guard: mutex.clone().lock_owned().await });
            }
            Self::Ekbatan(locks, key) => {
                return Ok(Held::Lease(locks.acquire(key, MAX_HOLD).await?));
            }
            Self::Advisory(advisory) => advisory.take().await?,
            Self::LeaseRow(row) => row.take().await?,
            Self::SetNx(set) => set.take().await?,
        }
        Ok(Held::AtTheServer)
    }

    pub async fn give_back(&mut self, held: Held) -> Result<(), Failure> {
        let ours = match (self, held) {
            (_, Held::Guard { .. }) => true,
            (_, Held::Lease(lease)) => lease.release().await,
            (Self::Advisory(advisory), _) => advisory.give_back().await?,
            (Self::LeaseRow(row), _) => row.give_back().await?,
            (Self::SetNx(set), _) => set.give_back().await?,
            (Self::Mutex(_) | Self::Ekbatan(..), Held::AtTheServer) => false,
        };
        match ours {
            true => Ok(()),
            false => Err("the key was lost while it was held".into()),
        }
    }

    pub async fn close(self) {
        if let Self::Ekbatan(locks, _) = self {
            locks.close().await;
        }
    }
}
