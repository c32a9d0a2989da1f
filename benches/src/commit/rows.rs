//! The rows of a deposit, for the modes that are written by hand, and the check of the money.

use ekbatan::prelude::*;
use serde_json::json;

/// The namespace of every event row.
pub const NAMESPACE: &str = "com.example.wallet";

/// The principal of every deposit.
pub const PRINCIPAL: &str = "teller";

/// A wallet's row, read by hand.
pub struct WalletRow {
    pub owner: String,
    pub currency: String,
    pub balance: Decimal,
    pub state: String,
    pub version: i64,
}

/// The values of an event row that differ between deposits.
pub struct DepositEvent {
    pub id: Uuid,
    pub action: Uuid,
    pub params: serde_json::Value,
    pub payload: serde_json::Value,
    pub started: DateTime<Utc>,
    pub completed: DateTime<Utc>,
}

impl DepositEvent {
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

/// What a database holds, to check that no deposit is lost, torn or doubled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    /// The sum of all balances, in cents.
    pub balance: i64,
    /// The sum of all version steps since the wallets were inserted.
    pub changes: i64,
    /// The number of events.
    pub events: i64,
    /// The sum of the amounts in all events, in cents.
    pub deposited: i64,
}

impl Totals {
    /// The expected totals after `deposits` more deposits of `cents` each.
    pub const fn after(self, deposits: i64, cents: i64) -> Self {
        Self {
            balance: self.balance + deposits * cents,
            changes: self.changes + deposits,
            events: self.events + deposits,
            deposited: self.deposited + deposits * cents,
        }
    }
}
