// The wallet of the guide, and a database for it in a temporary SQLite file. The pages of the
// guide include this file in hidden lines.

use ekbatan::db::Dialect;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

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
        let (balance, state) = (Decimal::ZERO, WalletState::Open);
        let wallet = Wallet { id, owner: owner.into(), currency: currency.into(), balance, state };
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

pub struct OpenWallet;

#[derive(Debug, Serialize, Deserialize)]
pub struct Opening {
    pub owner: String,
    pub currency: String,
}

impl Opening {
    pub fn new(owner: &str) -> Self {
        Self { owner: owner.into(), currency: "EUR".into() }
    }
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

pub struct DepositMoney;

#[derive(Debug, Clone, Serialize, Deserialize)]
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

/// The table of wallets, per dialect.
pub fn migrations() -> Migrations {
    const SQLITE: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/wallet/migrations/sqlite/0001_create_wallets.sql"
    ));
    const POSTGRES: &str = include_str!(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/examples/wallet/migrations/postgres/0001_create_wallets.sql"
    ));
    let sqlite = Migrations::none().script_for(Dialect::Sqlite, 1, "create_wallets", SQLITE);
    sqlite.script_for(Dialect::Postgres, 1, "create_wallets", POSTGRES)
}

/// A database in a temporary file, migrated, and an executor on it.
pub async fn start()
-> Result<(ekbatan_testkit::TempSqlite, Databases, ActionExecutor), Box<dyn std::error::Error>> {
    let file = ekbatan_testkit::TempSqlite::new()?;
    let databases = Databases::open(&file.url()).await?;
    databases.migrate(&migrations()).await?;
    let executor =
        ActionExecutor::builder(&databases, "com.example.wallet").model::<Wallet>().build().await?;
    Ok((file, databases, executor))
}
