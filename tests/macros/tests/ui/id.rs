//! A field `id` that is no id.

use ekbatan_macros::{Entity, State};
use uuid::Uuid;

#[derive(Debug, Clone, Entity)]
#[entity(table = "accounts")]
struct Account {
    id: Uuid,
    state: AccountState,
}

#[derive(Debug, Clone, State)]
enum AccountState {
    Open,
}

fn main() {}
