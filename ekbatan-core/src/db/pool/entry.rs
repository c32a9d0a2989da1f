//! A connection of a pool, and its end.
//!
//! Invariant: a connection counts as open until the database has ended its session, so that
//! closing the pool can wait for that.

use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::db::Connection;

/// How many connections of a pool are open, those that are being closed included.
#[derive(Clone, Default)]
pub(super) struct OpenConnections(watch::Sender<usize>);

/// Guard: counts one connection as open.
pub(super) struct OpenConnection(watch::Sender<usize>);

impl OpenConnections {
    pub(super) fn add(&self) -> OpenConnection {
        self.0.send_modify(|count| *count += 1);
        OpenConnection(self.0.clone())
    }

    /// Waits until no connection is open.
    pub(super) async fn all_closed(&self) {
        // Fails only if there is no sender, and `self` is one.
        let _ = self.0.subscribe().wait_for(|count| *count == 0).await;
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// A connection and what the pool knows about it.
pub(super) struct PoolEntry {
    /// `None` only while the entry is dropped.
    connection: Option<Box<dyn Connection>>,
    open: Option<OpenConnection>,
    /// Set before each use and cleared after it. If the user is dropped in between, the entry
    /// stays busy and is closed instead of being lent again.
    pub(super) busy: bool,
    /// Whether it was lent before, and so may have died while it was idle.
    pub(super) used: bool,
    /// From this time on it is closed instead of being lent.
    expires: Option<Instant>,
    pub(super) idle_since: Instant,
    closing: Closing,
}

/// How the connections of a pool are closed.
#[derive(Clone, Copy)]
pub(super) struct Closing {
    /// Whether the database runs in this process. Its connections are always closed in an orderly
    /// way: a thread may still run the last statement.
    pub(super) in_process: bool,
    /// The maximum time for an orderly end.
    pub(super) timeout: Duration,
}

impl PoolEntry {
    pub(super) fn new(
        connection: Box<dyn Connection>,
        open: OpenConnection,
        expires: Option<Instant>,
        closing: Closing,
    ) -> Self {
        Self {
            connection: Some(connection),
            open: Some(open),
            busy: false,
            used: false,
            expires,
            idle_since: Instant::now(),
            closing,
        }
    }

    pub(super) fn connection(&mut self) -> Option<&mut (dyn Connection + 'static)> {
        self.connection.as_deref_mut()
    }

    pub(super) fn is_expired(&self) -> bool {
        self.expires.is_some_and(|expires| Instant::now() >= expires)
    }
}

impl Drop for PoolEntry {
    fn drop(&mut self) {
        let (connection, open) = (self.connection.take(), self.open.take());
        let Closing { in_process, timeout } = self.closing;
        // The session of a busy connection is in an unknown state, and a server ends it at once
        // when its connection is dropped.
        if self.busy && !in_process {
            return;
        }
        if let (Some(connection), Ok(runtime)) = (connection, Handle::try_current()) {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(timeout, connection.close()).await;
                drop(open);
            });
        }
    }
}
