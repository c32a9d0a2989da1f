//! Values that cannot be staged as they are.

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

fn add_without_new(plan: &mut ActionPlan, account: Account) {
    plan.add(account);
}

fn update_without_a_change(plan: &mut ActionPlan, stored: Stored<Account>) {
    plan.update(stored);
}

fn update_without_a_question_mark(plan: &mut ActionPlan, stored: Stored<Account>) {
    plan.update(stored.change(|_| Err::<(), _>("refused")));
}

fn main() {}
