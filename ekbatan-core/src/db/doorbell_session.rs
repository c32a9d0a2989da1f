//! What a dialect offers so that processes hear of each other's commits.

use async_trait::async_trait;

use super::DbError;

/// A session of its own over which a process hears that others have committed something. Everything
/// may get lost: what it tells is found later without it.
#[async_trait]
pub(crate) trait DoorbellSession: Send {
    /// Waits until another process may have committed something. The future may be dropped at any
    /// time.
    async fn heard(&mut self) -> Result<(), DbError>;

    /// Lets other processes hear of what is committed. `false` if there is none: then there are no
    /// more nodes than the `own` ones of this process.
    async fn ring(&mut self, own: usize) -> Result<bool, DbError>;

    /// Finds out whether the session is still there.
    async fn check(&mut self) -> Result<(), DbError>;

    /// Ends the session in an orderly way.
    async fn close(self: Box<Self>);
}
