//! Errors of `#[model(..)]` and `#[entity(..)]`.

use ekbatan_macros::{Entity, Model};

#[derive(Clone, Model)]
struct NoAttribute {
    id: Id<NoAttribute>,
    state: State,
}

#[derive(Clone, Model)]
#[model(table = "wallets", tabel = "wallets", table = "purses", events = WalletEvent)]
struct Misspelled {
    id: Id<Misspelled>,
    state: State,
}

#[derive(Clone, Model)]
#[model(table = wallets, event = "WalletEvent", name = "")]
struct Quoted {
    id: Id<Quoted>,
    state: State,
}

#[derive(Clone, Entity)]
#[entity(table = "a.b.c", event = WalletEvent, shard = 1)]
struct Eventful {
    id: Id<Eventful>,
    state: State,
}

fn main() {}
