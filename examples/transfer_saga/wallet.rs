//! A wallet on the shard of its country.

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
}

#[derive(Debug, Clone, Serialize, Deserialize, Event)]
pub enum WalletEvent {
    #[event(name = "WalletOpened")]
    Opened { owner: String, balance: Decimal },
    #[event(name = "WalletMoneySent")]
    MoneySent { amount: Decimal },
    #[event(name = "WalletMoneyReceived")]
    MoneyReceived { amount: Decimal },
    #[event(name = "WalletMoneyReturned")]
    MoneyReturned { amount: Decimal },
}

#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    #[error("the amount must be positive, but it is {0}")]
    AmountNotPositive(Decimal),
    #[error("{owner} has {balance}, but needs {amount}")]
    NotEnough { owner: String, balance: Decimal, amount: Decimal },
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Wallet {
    pub fn send(&mut self, amount: Decimal) -> Result<WalletEvent, WalletError> {
        if amount <= Decimal::ZERO {
            return Err(WalletError::AmountNotPositive(amount));
        }
        if amount > self.balance {
            let (owner, balance) = (self.owner.clone(), self.balance);
            return Err(WalletError::NotEnough { owner, balance, amount });
        }
        self.balance -= amount;
        Ok(WalletEvent::MoneySent { amount })
    }

    pub fn receive(&mut self, amount: Decimal) -> WalletEvent {
        self.balance += amount;
        WalletEvent::MoneyReceived { amount }
    }

    pub fn take_back(&mut self, amount: Decimal) -> WalletEvent {
        self.balance += amount;
        WalletEvent::MoneyReturned { amount }
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
        opening: &Opening,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet = Wallet {
            id: ctx.new_sharded_id(opening.country),
            owner: opening.owner.clone(),
            currency: "EUR".to_owned(),
            balance: opening.balance,
            state: WalletState::Open,
        };
        let event = WalletEvent::Opened { owner: opening.owner.clone(), balance: opening.balance };
        Ok(ctx.plan().add(New::new(wallet, event)))
    }
}
