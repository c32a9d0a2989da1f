//! The doorbell's connection: asks the library whether another connection has written the file.
//!
//! Invariant: an answer costs no read of the file. The library keeps the number in memory that it
//! shares between processes.

use std::time::Duration;

use async_trait::async_trait;
use tokio::time::{Instant, sleep_until};

use super::library::{Library, Patience};
use crate::db::doorbell_session::DoorbellSession;
use crate::db::{DbError, DbErrorKind};

/// The pauses between two questions: the first one after a commit, and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(3), Duration::from_millis(50));

pub(super) struct SqliteDoorbell {
    library: Library,
    version: i64,
    pause: Duration,
    next: Instant,
}

impl SqliteDoorbell {
    pub(super) fn new(mut library: Library) -> Result<Self, DbError> {
        library.set_patience(Patience::None)?;
        let version = library.data_version()?;
        Ok(Self { library, version, pause: PAUSE.0, next: Instant::now() + PAUSE.0 })
    }
}

#[async_trait]
impl DoorbellSession for SqliteDoorbell {
    /// Commits of this process are heard, too: the library does not tell them apart.
    async fn heard(&mut self) -> Result<(), DbError> {
        loop {
            sleep_until(self.next).await;
            let version = match self.library.data_version() {
                // Another process opens or repairs the file.
                Err(error) if error.kind() == DbErrorKind::LockTimeout => self.version,
                version => version?,
            };
            let has_changed = std::mem::replace(&mut self.version, version) != version;
            self.pause = if has_changed { PAUSE.0 } else { (self.pause * 2).min(PAUSE.1) };
            self.next = Instant::now() + self.pause;
            if has_changed {
                return Ok(());
            }
        }
    }

    /// A commit rings by itself.
    async fn ring(&mut self, _: usize) -> Result<bool, DbError> {
        Ok(false)
    }

    async fn check(&mut self) -> Result<(), DbError> {
        Ok(())
    }

    async fn close(self: Box<Self>) {}
}
