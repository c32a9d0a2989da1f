impl Action for DepositMoney {
    const NAME: &'static str = "wallet.deposit_money";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, params: &Deposit) -> Result<Stored<Wallet>, WalletError> {
        let wallet = ctx.get(params.wallet).await?;                // the row, its version, its dates
        let wallet = wallet.change(|w| w.deposit(params.amount))?; // the next value and its event
        Ok(ctx.plan().update(wallet))                              // staged; the commit writes both
    }
}

let deposit = Deposit { wallet, amount: Decimal::from(5) };
let wallet = executor.execute(&DepositMoney, deposit).principal("alice").idempotency_key("top-up-1").await?;
