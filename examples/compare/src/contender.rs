//! The contract of everything that is compared.

use async_trait::async_trait;
use ekbatan::prelude::{Decimal, Uuid};

use crate::failure::Failure;

/// Makes deposits by one strategy.
#[async_trait]
pub trait Contender: Send + Sync {
    /// Makes one deposit, repeating it until it commits. Returns the number of attempts.
    async fn deposit(&self, wallet: Uuid, amount: Decimal) -> Result<u32, Failure>;

    /// Closes the connections.
    async fn close(&self);
}
