//! The end of a process: when it is told to end, and what a node hands back.

use std::io;

/// What a node gave back when it ended. Other nodes do it, and no attempt is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HandedBack {
    /// The number of events or calls whose handling was cut off or not yet noted.
    pub cancelled: usize,
    /// The number of events or calls that had not begun.
    pub waiting: usize,
}

impl HandedBack {
    /// The sum of both.
    pub fn and(self, other: Self) -> Self {
        Self { cancelled: self.cancelled + other.cancelled, waiting: self.waiting + other.waiting }
    }
}

/// Waits until the process is told to end: by SIGTERM, which service managers send, or by SIGINT,
/// which is Ctrl-C. The first call changes for good that these signals end the process by
/// themselves.
pub async fn told_to_end() -> io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!(signal = name, "the process is told to end");
        Ok(())
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}
