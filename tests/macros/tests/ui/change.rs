//! A change that cannot fail.

use ekbatan_core::action::ActionPlan;
use ekbatan_core::domain::{Id, Stored};
use ekbatan_macros::{Event, Model, State};
use serde::Serialize;

#[derive(Debug, Clone, Model)]
#[model(table = "accounts", event = AccountEvent)]
struct Account {
    id: Id<Account>,
    note: Option<String>,
    balance: i64,
    state: AccountState,
}

#[derive(Debug, Clone, State)]
enum AccountState {
    Open,
}

#[derive(Debug, Clone, Serialize, Event)]
enum AccountEvent {
    #[event(name = "AccountOpened")]
    Opened,
}

fn change_without_an_error(
    plan: &mut ActionPlan,
    stored: Stored<Account>,
) -> Result<(), Box<dyn std::error::Error>> {
    let changed = stored.change(|account| {
        account.balance += 1;
        Ok(())
    })?;
    plan.update(changed);
    Ok(())
}

fn main() {}
