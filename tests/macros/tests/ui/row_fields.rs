//! Errors of the fields of a row, all reported in one build.

use ekbatan_macros::{Entity, Model};

#[derive(Clone, Model)]
#[model(table = "wallets", event = WalletEvent)]
struct NothingOfItsOwn {
    owner: String,
}

#[derive(Clone, Model)]
#[model(table = "wallets", event = WalletEvent)]
struct Kept {
    #[column(json)]
    id: Id<Kept>,
    version: i64,
    created_date: DateTime<Utc>,
    #[column(name = "updated_date")]
    touched: DateTime<Utc>,
    state: State,
}

#[derive(Clone, Entity)]
#[entity(table = "wallets")]
struct Columns {
    id: Id<Columns>,
    owner: String,
    #[column(name = "owner")]
    owner_name: String,
    #[column(name = " ")]
    blank: String,
    #[column(nane = "x", skip)]
    misspelled: String,
    #[column(json = true)]
    valued: String,
    state: State,
}

fn main() {}
