//! Values that a column is not compared with, and ids that are not compared.

use ekbatan_core::domain::Id;
use ekbatan_core::repository::Condition;
use ekbatan_macros::{Event, Model, State};
use serde::Serialize;

#[derive(Debug, Clone, Model)]
#[model(table = "accounts", event = AccountEvent)]
struct Account {
    id: Id<Account>,
    note: Option<String>,
    balance: i64,
    #[column(json)]
    tags: Vec<String>,
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

fn a_text_for_an_option() -> Condition<Account> {
    Account::NOTE.eq("x")
}

fn texts_for_an_option() -> Condition<Account> {
    Account::NOTE.is_in(["x", "y"])
}

fn a_text_for_a_number() -> Condition<Account> {
    Account::BALANCE.ge("5")
}

fn json(tags: Vec<String>) -> Condition<Account> {
    Account::TAGS.eq(tags)
}

struct Owner;

fn an_id_of_another_model(account: Id<Account>, owner: Id<Owner>) -> bool {
    account == owner
}

fn main() {}
