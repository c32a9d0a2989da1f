//! The row of a hand-written event.

use ekbatan::prelude::*;
use serde_json::{Value, json};

/// The values that differ between deposits.
pub struct EventRow {
    pub id: Uuid,
    pub action: Uuid,
    pub wallet: Uuid,
    pub params: Value,
    /// Without the balance, if the database computes it.
    pub payload: Value,
    pub started: DateTime<Utc>,
    pub completed: DateTime<Utc>,
}

pub const ACTION: &str = "wallet.deposit_money";
pub const MODEL: &str = "Wallet";
pub const EVENT: &str = "WalletMoneyDeposited";

impl EventRow {
    pub fn new(
        started: DateTime<Utc>,
        wallet: Uuid,
        amount: Decimal,
        balance: Option<Decimal>,
    ) -> Self {
        Self {
            id: Uuid::now_v7(),
            action: Uuid::now_v7(),
            wallet,
            params: json!({ "wallet": wallet, "amount": amount }),
            payload: match balance {
                Some(balance) => json!({ "amount": amount, "balance": balance }),
                None => json!({ "amount": amount }),
            },
            started,
            completed: Utc::now(),
        }
    }
}
