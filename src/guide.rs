//! Compiles every snippet of the README and of the guide, and runs those that can run.

macro_rules! pages {
    ($($name:ident = $path:literal),* $(,)?) => {$(
        #[doc = include_str!($path)]
        mod $name {}
    )*};
}

pages! {
    getting_started = "../docs/src/getting-started.md",
    models = "../docs/src/models.md",
    actions = "../docs/src/actions.md",
    executing = "../docs/src/executing.md",
    repositories = "../docs/src/repositories.md",
    transactions = "../docs/src/transactions.md",
    commit = "../docs/src/commit.md",
    outbox = "../docs/src/outbox.md",
    events = "../docs/src/events.md",
    remote_calls = "../docs/src/remote-calls.md",
    calls = "../docs/src/calls.md",
    relay = "../docs/src/relay.md",
    sagas = "../docs/src/sagas.md",
    jobs = "../docs/src/jobs.md",
    migrations = "../docs/src/migrations.md",
    taking_over = "../docs/src/taking-over.md",
    sharding = "../docs/src/sharding.md",
    locks = "../docs/src/locks.md",
    locks_etcd = "../docs/src/locks-etcd.md",
    contention = "../docs/src/contention.md",
    configuration = "../docs/src/configuration.md",
    production = "../docs/src/production.md",
    operations = "../docs/src/operations.md",
    settlement = "../docs/src/settlement.md",
    testing = "../docs/src/testing.md",
    coming_from_java = "../docs/src/coming-from-java.md",
}

/// These need their features, and are compiled by `scripts/test stores`.
#[cfg(feature = "mongodb")]
#[doc = include_str!("../docs/src/locks-mongodb.md")]
mod locks_mongodb {}

#[cfg(feature = "aerospike")]
#[doc = include_str!("../docs/src/locks-aerospike.md")]
mod locks_aerospike {}

#[cfg(feature = "hbase")]
#[doc = include_str!("../docs/src/locks-hbase.md")]
mod locks_hbase {}

/// The README shows `docs/snippets/readme.rs`, without the hidden lines that it needs to run:
/// GitHub would show them.
///
/// ```
/// # let (readme, snippet) = (
/// #     include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")),
/// #     include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/snippets/readme.rs")),
/// # );
/// assert!(readme.contains(&format!("```rust\n{snippet}```")));
/// assert_eq!(readme.matches("```rust").count(), 1);
/// ```
#[doc = concat!(
    "```\n",
    "# mod wallet { include!(concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/docs/snippets/wallet.rs\")); }\n",
    "# use ekbatan::prelude::*;\n",
    "# use wallet::{Deposit, OpenWallet, Opening, Wallet, WalletError, start};\n",
    "# struct DepositMoney;\n",
    "# #[tokio::main]\n",
    "# async fn main() -> Result<(), Box<dyn std::error::Error>> {\n",
    "# let (_file, _databases, executor) = start().await?;\n",
    "# let wallet = executor.execute(&OpenWallet, Opening::new(\"alice\")).await?.id;\n",
    include_str!("../docs/snippets/readme.rs"),
    "# assert_eq!((wallet.balance, wallet.version()), (Decimal::from(5), 2));\n",
    "# Ok(())\n",
    "# }\n",
    "```"
)]
mod readme {}
