//! The wallet, its deposit as an action, and the same rows for those who write them by hand.

use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The namespace that every event row carries.
pub const NAMESPACE: &str = "com.example.wallet";

/// Who deposits.
pub const PRINCIPAL: &str = "teller";

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
    #[event(name = "WalletMoneyDeposited")]
    MoneyDeposited { amount: Decimal, balance: Decimal },
}

#[derive(Debug, thiserror::Error)]
pub enum WalletError {
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Puts money into a wallet.
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
        let wallet = wallet.change(|wallet| {
            wallet.balance += params.amount;
            let (amount, balance) = (params.amount, wallet.balance);
            Ok::<_, WalletError>(WalletEvent::MoneyDeposited { amount, balance })
        })?;
        Ok(ctx.plan().update(wallet))
    }
}

/// The table of wallets, per dialect.
pub fn migrations() -> Migrations {
    Migrations::none()
        .script_for(
            "sqlite",
            1,
            "create_wallets",
            "CREATE TABLE wallets (id TEXT PRIMARY KEY, owner TEXT NOT NULL, currency TEXT NOT NULL, \
             balance TEXT NOT NULL, state TEXT NOT NULL, version INTEGER NOT NULL, \
             created_date TEXT NOT NULL, updated_date TEXT NOT NULL)",
        )
        .script_for(
            "postgres",
            1,
            "create_wallets",
            "CREATE TABLE wallets (id uuid PRIMARY KEY, owner text NOT NULL, currency varchar(3) NOT NULL, \
             balance numeric(20, 2) NOT NULL, state varchar(24) NOT NULL, version bigint NOT NULL, \
             created_date timestamp NOT NULL, updated_date timestamp NOT NULL)",
        )
        .script_for(
            "mysql",
            1,
            "create_wallets",
            "CREATE TABLE wallets (id char(36) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY, \
             owner varchar(255) NOT NULL, currency varchar(3) NOT NULL, balance decimal(20, 2) NOT NULL, \
             state varchar(24) NOT NULL, version bigint NOT NULL, created_date datetime(6) NOT NULL, \
             updated_date datetime(6) NOT NULL) DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin",
        )
        .script_for(
            "mariadb",
            1,
            "create_wallets",
            "CREATE TABLE wallets (id uuid NOT NULL PRIMARY KEY, owner varchar(255) NOT NULL, \
             currency varchar(3) NOT NULL, balance decimal(20, 2) NOT NULL, state varchar(24) NOT NULL, \
             version bigint NOT NULL, created_date datetime(6) NOT NULL, updated_date datetime(6) NOT NULL) \
             DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
        )
}

/// A wallet's row, read by hand.
pub struct WalletRow {
    pub owner: String,
    pub currency: String,
    pub balance: Decimal,
    pub state: String,
    pub version: i64,
}

/// What an event's row says of one deposit, written by hand; the rest is the same in all.
pub struct EventRow {
    pub id: Uuid,
    pub action: Uuid,
    pub params: serde_json::Value,
    pub payload: serde_json::Value,
    pub started: DateTime<Utc>,
    pub completed: DateTime<Utc>,
}

impl EventRow {
    pub fn new(started: DateTime<Utc>, wallet: Uuid, amount: Decimal, balance: Decimal) -> Self {
        Self {
            id: Uuid::now_v7(),
            action: Uuid::now_v7(),
            params: json!({ "wallet": wallet, "amount": amount }),
            payload: json!({ "amount": amount, "balance": balance }),
            started,
            completed: Utc::now(),
        }
    }
}

/// What a database holds, for the check that nothing was lost, torn or done twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// The balances of all wallets, in cents.
    pub balance: i64,
    /// How often wallets have changed.
    pub changes: i64,
    /// How many events there are.
    pub events: i64,
    /// What the events' deposits add up to, in cents.
    pub deposited: i64,
}

impl Totals {
    /// These, after so many more deposits of so much.
    pub const fn after(self, deposits: i64, cents: i64) -> Self {
        Self {
            balance: self.balance + deposits * cents,
            changes: self.changes + deposits,
            events: self.events + deposits,
            deposited: self.deposited + deposits * cents,
        }
    }
}
