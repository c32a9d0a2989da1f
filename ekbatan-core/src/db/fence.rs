//! Raising a fence on one database.
//!
//! What always holds: a fence that is raised twice stands as raised once, so that a
//! connection which had died in its pool is no reason to fail; and how much time a lease has
//! left is counted when the server is told, not when the wait for a connection began.

use tokio::time::Instant;

use super::database::Rows;
use super::{Database, DbError, FenceCheck, Query, TableInfo};

/// A fence that is to be raised to the token of a lease.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FenceRaise {
    /// The key and the lease's token.
    pub check: FenceCheck,
    /// When the lease ends, by this process's clock.
    pub until: Instant,
    /// Whether a crash of the server may not forget it. Where a commit on the same database
    /// follows, it may: the commit then finds no fence of its own and is refused.
    pub to_disk: bool,
}

impl FenceRaise {
    /// How many microseconds the lease has left now.
    pub fn micros(&self) -> i64 {
        let remaining = self.until.saturating_duration_since(Instant::now());
        i64::try_from(remaining.as_micros()).unwrap_or(i64::MAX)
    }
}

impl Database {
    /// Raises a fence, and then reads a row of a table by its id if a read is given. Nothing
    /// if a later token stands.
    pub(crate) async fn raise_fence(
        &self,
        raise: &FenceRaise,
        read: Option<(&Query, &TableInfo)>,
        holder: &'static str,
    ) -> Result<Option<Rows>, DbError> {
        // On a single writer the raise would wait for the transaction that this task has open.
        self.check_not_writing()?;
        loop {
            let mut loan = self.primary.checkout(holder).await?;
            let connection = loan.begin()?;
            let answer = match read {
                Some((query, table)) => connection.find_under_fence(raise, query, table).await,
                None => connection.raise_fence(raise).await.map(|is| is.then(Vec::new)),
            };
            match answer {
                Err(error) if error.is_connection_lost() && loan.is_used() => {}
                Err(error) if error.is_connection_lost() => {
                    return Err(error.lost_at(self.driver.address()));
                }
                answer => {
                    loan.done();
                    return answer;
                }
            }
        }
    }
}
