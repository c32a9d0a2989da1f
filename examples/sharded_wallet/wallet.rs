//! The domain: a wallet on the shard of its country, and its actions. Nothing here
//! depends on a database or on the number of shards, because the id carries the shard.

use ekbatan::domain::{New, ShardIdentifier};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "wallets", event = WalletEvent, name = "Wallet")]
pub struct Wallet {
    pub id: ShardedId<Wallet>,
    pub owner: String,
    pub currency: String,
    pub balance: Decimal,
    pub state: WalletState,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
pub enum WalletState {
    Open,
    #[state(name = "DELETED")]
    Closed,
}

#[derive(Debug, Clone, Serialize, Deserialize, Event)]
pub enum WalletEvent {
    #[event(name = "WalletOpened")]
    Opened { owner: String, balance: Decimal },
    #[event(name = "WalletMoneySent")]
    MoneySent { amount: Decimal, to: ShardedId<Wallet> },
    #[event(name = "WalletMoneyReceived")]
    MoneyReceived { amount: Decimal, from: ShardedId<Wallet> },
}

#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    #[error("{owner} has {balance}, but needs {amount}")]
    NotEnough { owner: String, balance: Decimal, amount: Decimal },
    #[error("the amount must be positive, but it is {0}")]
    AmountNotPositive(Decimal),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Wallet {
    fn send(&mut self, amount: Decimal, to: ShardedId<Wallet>) -> Result<WalletEvent, WalletError> {
        if amount <= Decimal::ZERO {
            return Err(WalletError::AmountNotPositive(amount));
        }
        if amount > self.balance {
            let (owner, balance) = (self.owner.clone(), self.balance);
            return Err(WalletError::NotEnough { owner, balance, amount });
        }
        self.balance -= amount;
        Ok(WalletEvent::MoneySent { amount, to })
    }

    fn receive(&mut self, amount: Decimal, from: ShardedId<Wallet>) -> WalletEvent {
        self.balance += amount;
        WalletEvent::MoneyReceived { amount, from }
    }
}

/// Opens a wallet on the shard of its country.
pub struct OpenWallet;

#[derive(Debug, Serialize, Deserialize)]
pub struct Opening {
    pub country: ShardIdentifier,
    pub owner: String,
    pub balance: Decimal,
}

impl Action for OpenWallet {
    const NAME: &'static str = "wallet.open";
    type Params = Opening;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Opening,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet = Wallet {
            id: ctx.new_sharded_id(params.country),
            owner: params.owner.clone(),
            currency: "EUR".to_owned(),
            balance: params.balance,
            state: WalletState::Open,
        };
        let (owner, balance) = (params.owner.clone(), params.balance);
        Ok(ctx.plan().add(New::new(wallet, WalletEvent::Opened { owner, balance })))
    }
}

/// Sends money from one wallet to another, on the same shard or on another one.
pub struct Transfer;

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Sending {
    pub from: ShardedId<Wallet>,
    pub to: ShardedId<Wallet>,
    pub amount: Decimal,
}

impl Action for Transfer {
    const NAME: &'static str = "wallet.transfer";
    type Params = Sending;
    type Output = [Stored<Wallet>; 2];
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Sending,
    ) -> Result<[Stored<Wallet>; 2], WalletError> {
        let sender = ctx.get(params.from).await?;
        let receiver = ctx.get(params.to).await?;
        let sender = sender.change(|wallet| wallet.send(params.amount, params.to))?;
        let receiver = receiver.apply(|wallet| wallet.receive(params.amount, params.from));
        let plan = ctx.plan();
        Ok([plan.update(sender), plan.update(receiver)])
    }
}
