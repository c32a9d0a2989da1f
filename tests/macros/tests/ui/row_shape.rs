//! A row must be a struct with named fields and without generics.

use ekbatan_macros::{Entity, Model};

#[derive(Clone, Model)]
#[model(table = "wallets", event = WalletEvent)]
struct Tuple(u8);

#[derive(Clone, Model)]
#[model(table = "wallets", event = WalletEvent)]
enum Either {
    A,
}

#[derive(Clone, Entity)]
#[entity(table = "wallets")]
struct Generic<T> {
    id: T,
    state: T,
}

fn main() {}
