//! Reads by id behind a proxy, which counts their statements and cuts their connections.

use std::time::Duration;

use ekbatan::action::Fence;
use ekbatan::db::{CommitToken, DbErrorKind, Route, Transaction, TransactionError};
use ekbatan::prelude::*;
use ekbatan::repository::ReadError;
use ekbatan_testkit::Proxy;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};
use support::soak::rounds;
use support::wallet::{Wallet, WalletError};
use support::{Dialect, ScratchDatabase, until};

use crate::bounded;
use crate::folded_reads::{read_all, wallets};
use crate::ledger::{Ledger, proxied};

// One thread, so that all reads of a round are asked for before the first answer arrives.
support::on_every_database! {
    #[tokio::test]
    |dialect| dialect;
    only postgres and mysql and mariadb:
    reads_at_the_same_moment_share_statements,
    a_read_that_is_alone_is_one_statement,
    reads_that_need_a_certain_state_are_sent_one_by_one,
    a_cut_connection_answers_every_reader,
}

/// How many reads are asked for at the same moment.
const READS: usize = 64;

/// A ledger behind a counting proxy, whose pooled connections have prepared their statements.
async fn counted(dialect: Dialect) -> (Ledger, Vec<Id<Wallet>>, Proxy) {
    let scratch = ScratchDatabase::create(dialect).await;
    let ids = Ledger::open(&scratch.url).await.open_wallets(READS).await;
    let (url, proxy) = proxied(&scratch.url).await;
    let config = ScratchDatabase::config_of(&url).maximum_pool_size(2);
    let ledger = Ledger::with_config(config).await;
    for _ in 0..5 {
        read_all(&wallets(&ledger), &ids).await.unwrap();
    }
    (ledger, ids, proxy)
}

async fn reads_at_the_same_moment_share_statements(dialect: Dialect) {
    let (ledger, ids, proxy) = counted(dialect).await;
    proxy.reset();
    let found = read_all(&wallets(&ledger), &ids).await.unwrap();
    assert!(found.iter().zip(&ids).all(|(wallet, id)| wallet.id == *id));
    let trips = proxy.round_trips();
    // One statement for the first read, and one for all others. A few more if a connection
    // prepares a statement again.
    assert!((2..=8).contains(&trips), "{READS} reads took {trips} round trips");
}

async fn a_read_that_is_alone_is_one_statement(dialect: Dialect) {
    let (ledger, ids, proxy) = counted(dialect).await;
    for id in &ids[..4] {
        wallets(&ledger).get(*id).await.unwrap(); // prepares the statement
    }
    proxy.reset();
    for id in &ids {
        wallets(&ledger).get(*id).await.unwrap();
    }
    assert_eq!(proxy.round_trips(), READS as u64);
}

struct ReadAtOnce;

#[derive(Serialize, Deserialize)]
struct Wanted {
    wallets: Vec<Id<Wallet>>,
}

impl Action for ReadAtOnce {
    const NAME: &'static str = "wallet.read_at_once";
    type Params = Wanted;
    type Output = usize;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Wanted,
    ) -> Result<usize, WalletError> {
        Ok(read_all(&ctx.repository(), &params.wallets).await?.len())
    }
}

async fn reads_that_need_a_certain_state_are_sent_one_by_one(dialect: Dialect) {
    let (ledger, ids, proxy) = counted(dialect).await;
    let least = READS as u64;
    let wanted = || Wanted { wallets: ids.clone() };

    proxy.reset();
    let reading = async |transaction: Transaction| {
        read_all(&wallets(&ledger).within(&transaction), &ids).await
    };
    let found: Result<_, TransactionError<ReadError>> =
        ledger.databases.transactions().in_transaction(reading).await;
    assert_eq!(found.unwrap().len(), READS);
    assert!(proxy.round_trips() >= least, "in a transaction: {}", proxy.round_trips());

    proxy.reset();
    let token: CommitToken = "0/0 0/1".parse().unwrap();
    let after = wallets(&ledger).on_replica_after(&token, Duration::from_secs(60));
    assert_eq!(read_all(&after, &ids).await.unwrap().len(), READS);
    assert!(proxy.round_trips() >= least, "after a token: {}", proxy.round_trips());

    proxy.reset();
    let fence = Fence { key: "a key".into(), token: 1, remaining: Duration::from_secs(600) };
    let call = ledger.executor.execute(&ReadAtOnce, wanted()).fenced_by(&fence);
    assert_eq!(call.await.unwrap(), READS);
    assert!(proxy.round_trips() >= least, "under a fence: {}", proxy.round_trips());

    proxy.reset();
    let call = ledger.executor.execute(&ReadAtOnce, wanted());
    assert_eq!(call.await.unwrap(), READS);
    assert!(proxy.round_trips() < least, "in an action: {}", proxy.round_trips());
}

async fn a_cut_connection_answers_every_reader(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let ids = Ledger::open(&scratch.url).await.open_wallets(8).await;
    let (url, proxy) = proxied(&scratch.url).await;
    let ledger = Ledger::with_config(ScratchDatabase::config_of(&url)).await;
    for _ in 0..rounds(5, 50) {
        read_all(&wallets(&ledger), &ids).await.unwrap();
        proxy.stall();
        let (repository, wanted) = (wallets(&ledger), ids.clone());
        let readers =
            tokio::spawn(
                async move { join_all(wanted.iter().map(|id| repository.get(*id))).await },
            );
        until("a read is on its way", async || {
            !ledger.databases.pool_status(Route::Primary).holders.is_empty()
        })
        .await;
        proxy.cut();
        proxy.resume();
        for answer in bounded("all readers", readers).await.unwrap() {
            let error = answer.unwrap_err();
            let kind = error.database_error().map(|error| error.kind());
            assert_eq!(kind, Some(DbErrorKind::Unavailable), "{error:?}");
            assert!(error.to_string().contains(ledger.databases.default_shard().address()));
        }
        proxy.restore();
        let found = bounded("the next reads", read_all(&wallets(&ledger), &ids)).await;
        assert_eq!(found.unwrap().len(), ids.len());
    }
    ledger.assert_nothing_held();
}
