//! The round trips of an action, counted by a proxy.

use std::future::IntoFuture;

use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use serde::{Deserialize, Serialize};
use support::wallet::{Wallet, WalletError, migrations};
use support::{Dialect, ScratchDatabase};

use crate::bounded;
use crate::ledger::{Ledger, proxied};

on_every_database!(only postgres and mysql and mariadb:
    one_model_with_one_event_takes_two_round_trips,
    a_hundred_rows_of_one_type_take_two_round_trips,
    an_action_that_changes_nothing_makes_no_round_trip_to_commit,
);

mod tokens {
    use super::*;

    on_every_database!(only postgres: a_token_is_read_once_for_the_caller_and_the_effects);
}

struct DepositEverywhere;

#[derive(Serialize, Deserialize)]
struct Everywhere {
    wallets: Vec<Id<Wallet>>,
}

impl Action for DepositEverywhere {
    const NAME: &'static str = "wallet.deposit_everywhere";
    type Params = Everywhere;
    type Output = usize;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Everywhere,
    ) -> Result<usize, WalletError> {
        let wallets = ctx.repository::<Wallet>().find_by_ids(&params.wallets).await?;
        for wallet in wallets {
            let wallet = wallet.change(|wallet| wallet.deposit(Decimal::ONE))?;
            ctx.plan().update(wallet);
        }
        Ok(ctx.plan().changes().len())
    }
}

/// A ledger behind a counting proxy, with one connection in the pool and one lane.
async fn counted(dialect: Dialect) -> (Ledger, Proxy) {
    let (url, proxy) = proxied(&ScratchDatabase::create(dialect).await.url).await;
    let config = ScratchDatabase::config_of(&url).lanes(1).maximum_pool_size(1);
    (Ledger::with_config(config).await, proxy)
}

async fn one_model_with_one_event_takes_two_round_trips(dialect: Dialect) {
    let (ledger, proxy) = counted(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    ledger.deposit(id).await.unwrap(); // prepares the statements
    proxy.reset();
    for _ in 0..10 {
        ledger.deposit(id).await.unwrap();
    }
    assert_eq!(proxy.round_trips(), 20, "each action reads and commits");
}

async fn a_hundred_rows_of_one_type_take_two_round_trips(dialect: Dialect) {
    let (ledger, proxy) = counted(dialect).await;
    let wallets = ledger.open_wallets(100).await;
    for round in 0..3 {
        proxy.reset();
        let params = Everywhere { wallets: wallets.clone() };
        assert_eq!(ledger.executor.execute(&DepositEverywhere, params).await.unwrap(), 100);
        if round > 0 {
            assert_eq!(proxy.round_trips(), 2, "a read and a commit");
        }
    }
}

async fn an_action_that_changes_nothing_makes_no_round_trip_to_commit(dialect: Dialect) {
    let (ledger, proxy) = counted(dialect).await;
    ledger.open_wallets(1).await;
    let no_wallets = || Everywhere { wallets: Vec::new() };
    ledger.executor.execute(&DepositEverywhere, no_wallets()).await.unwrap();
    proxy.reset();
    ledger.executor.execute(&DepositEverywhere, no_wallets()).await.unwrap();
    assert_eq!(proxy.round_trips(), 0);
}

/// Opens a wallet, with an effect.
struct OpenAndTell;

#[derive(Serialize, Deserialize)]
struct Nothing {}

impl Action for OpenAndTell {
    const NAME: &'static str = "wallet.open_and_tell";
    type Params = Nothing;
    type Output = ();
    type Error = WalletError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<(), WalletError> {
        let id = ctx.new_id();
        ctx.plan().add(Wallet::open(id, "alice", "EUR"));
        ctx.plan().after_commit("tell", |committed| async move {
            committed.token.map(drop).ok_or_else(|| std::io::Error::other("it has no token"))
        });
        Ok(())
    }
}

async fn a_token_is_read_once_for_the_caller_and_the_effects(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (url, proxy) = proxied(&scratch.url).await;
    let primary = ScratchDatabase::config_of(&url).lanes(1).maximum_pool_size(1);
    let config = EkbatanConfig::from(primary).replica(scratch.config());
    let databases = Databases::connect(&config).await.unwrap();
    databases.migrate(&migrations()).await.unwrap();
    let executor =
        ActionExecutor::builder(&databases, "tests").model::<Wallet>().build().await.unwrap();
    for round in 0..4 {
        proxy.reset();
        let opening = executor.execute(&OpenAndTell, Nothing {}).with_commit();
        let ((), committed) = bounded("the call", opening.into_future()).await.unwrap();
        assert!(committed.unwrap().token.is_some());
        if round > 1 {
            assert_eq!(proxy.round_trips(), 2, "a commit and the position");
        }
    }
    assert_eq!(executor.effect_failures(), 0);
}
