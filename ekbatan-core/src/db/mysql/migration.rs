//! The lock of migrations, and the session in which a migration is recorded.
//!
//! Invariant: from before the history is read until the record is written, one session has the lock. It may
//! be that of a script in which the record could not be written.

use std::fmt::Write as _;
use std::time::Duration;

use sha2::{Digest, Sha256};
use sqlx::Connection as _;

use super::connection::MySqlConnection;
use super::error::classify;
use crate::db::{DbError, DbErrorKind};

/// How long a process waits while another one migrates.
const TIMEOUT: Duration = Duration::from_secs(300);

impl MySqlConnection {
    pub(super) async fn lock_migrations(&mut self) -> Result<(), DbError> {
        let seconds = TIMEOUT.as_secs();
        let sql = format!("SELECT GET_LOCK('{}', {seconds})", self.migration_lock());
        match self.numbers(&sql).await?[..] {
            [1] => Ok(()),
            _ => Err(DbError::new(
                DbErrorKind::LockTimeout,
                format!(
                    "another process has been migrating {} for more than {seconds} s; see SHOW PROCESSLIST for what it does",
                    self.address()
                ),
            )),
        }
    }

    /// Goes on in a new session. The old one keeps the lock.
    pub(super) async fn leave_session(&mut self) -> Result<(), DbError> {
        // The new session would wait for locks on tables that the script left.
        self.send("COMMIT; UNLOCK TABLES").await.map_err(not_committed)?;
        self.left = Some(self.renew().await?);
        Ok(())
    }

    pub(super) async fn unlock_migrations(&mut self, succeeded: bool) -> Result<(), DbError> {
        let release = format!("SELECT RELEASE_LOCK('{}')", self.migration_lock());
        if succeeded {
            // A script may have left a transaction open, which then holds the record of the migration, too.
            self.numbers(&format!("COMMIT; {release}")).await.map_err(not_committed)?;
        } else {
            self.numbers(&format!("ROLLBACK; {release}")).await?;
        }
        match self.left.take() {
            Some(session) => session.close().await.map_err(classify),
            None => Ok(()),
        }
    }

    /// Processes that share the framework's tables migrate one after the other, by this lock.
    fn migration_lock(&self) -> String {
        let mut name = String::from("ekbatan-migrate-");
        for byte in &Sha256::digest(self.syntax.eventlog.as_bytes())[..16] {
            let _ = write!(name, "{byte:02x}");
        }
        name
    }
}

fn not_committed(error: DbError) -> DbError {
    // The state of a transaction of XA does not allow it.
    if error.code() != Some("1399") {
        return error;
    }
    let why = format!(
        "the COMMIT after the script failed: {error}; a script must end what it begins, such as a transaction of XA"
    );
    DbError::new(error.kind(), why).with_source(error)
}
