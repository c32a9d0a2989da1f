//! A state whose derive is missing.

use ekbatan_core::domain::Id;
use ekbatan_macros::Entity;

#[derive(Debug, Clone, Entity)]
#[entity(table = "accounts")]
struct Account {
    id: Id<Account>,
    state: AccountState,
}

#[derive(Debug, Clone)]
enum AccountState {
    Open,
}

fn main() {}
