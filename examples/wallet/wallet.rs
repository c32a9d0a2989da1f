//! The domain: a wallet, its events, and two actions. Nothing here depends on a database.

// Other programs include this file by its path, so the module below needs an explicit
// path.
#[path = "migrations.rs"]
mod migrations;

use ekbatan::domain::New;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

pub use migrations::migrations;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "wallets", event = WalletEvent, name = "Wallet")]
pub struct Wallet {
    pub id: Id<Wallet>,
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
    Opened { owner: String, currency: String },
    #[event(name = "WalletMoneyDeposited")]
    MoneyDeposited { amount: Decimal, balance: Decimal },
    #[event(name = "WalletClosed")]
    Closed { balance: Decimal },
}

#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    #[error("the amount must be positive, but it is {0}")]
    AmountNotPositive(Decimal),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl Wallet {
    pub fn open(id: Id<Wallet>, owner: &str, currency: &str) -> New<Wallet> {
        let event = WalletEvent::Opened { owner: owner.into(), currency: currency.into() };
        let wallet = Wallet {
            id,
            owner: owner.into(),
            currency: currency.into(),
            balance: Decimal::ZERO,
            state: WalletState::Open,
        };
        New::new(wallet, event)
    }

    pub fn deposit(&mut self, amount: Decimal) -> Result<WalletEvent, WalletError> {
        if amount <= Decimal::ZERO {
            return Err(WalletError::AmountNotPositive(amount));
        }
        self.balance += amount;
        Ok(WalletEvent::MoneyDeposited { amount, balance: self.balance })
    }
}

/// Opens an empty wallet.
pub struct OpenWallet;

#[derive(Debug, Serialize, Deserialize)]
pub struct Opening {
    pub owner: String,
    pub currency: String,
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
        let wallet = Wallet::open(ctx.new_id(), &params.owner, &params.currency);
        Ok(ctx.plan().add(wallet))
    }
}

/// Deposits money into a wallet.
pub struct DepositMoney;

#[derive(Debug, Serialize, Deserialize)]
pub struct Deposit {
    pub wallet: Id<Wallet>,
    pub amount: Decimal,
}

impl Action for DepositMoney {
    const NAME: &'static str = "wallet.deposit_money";
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Stored<Wallet>, WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        Ok(ctx.plan().update(wallet))
    }
}
