//! A deposit that a test interrupts.

use ekbatan::prelude::*;

use crate::wallet::{Deposit, Wallet, WalletError};

/// Deposits, and runs a future between the read and the change. The closure gets the number of the
/// attempt.
pub struct InterruptedDeposit<F>(pub F);

impl<F, Fut> Action for InterruptedDeposit<F>
where
    F: Fn(u32) -> Fut + Send + Sync,
    Fut: Future<Output = ()> + Send,
{
    const NAME: &'static str = "wallet.interrupted_deposit";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        (self.0)(ctx.attempt()).await;
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        Ok(ctx.plan().update(wallet))
    }
}
