//! A server that was the primary and became read-only. Connections that lead to it are closed, so
//! that the next one can lead to the new primary.
//!
//! The tests make the sessions of the framework read-only, and then let new sessions write again:
//! what remains read-only are the sessions that the framework kept.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{ErrorKind, Outcome, RetryPolicy};
use ekbatan::db::{ActionId, DbErrorKind, Route, Transaction, TransactionError};
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer};
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet};
use support::{PlainConnection, ScratchDatabase};

use crate::bounded;
use crate::ledger::Ledger;
use crate::other_sessions::{Observer, lock_wallet};
use crate::waiting::{filled, insist};

/// How new sessions of the server become read-only, and writable again.
struct Statements {
    demote: String,
    promote: String,
}

async fn connections_to_a_demoted_primary_are_left(url: &str, statements: Statements) {
    let ledger = Ledger::open(url).await;
    let wallet = ledger.open_wallets(1).await[0];
    let mut operator = PlainConnection::connect(url).await;
    operator.execute(&statements.demote).await;

    let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await.unwrap();
    let executor = ActionExecutor::builder(&databases, "tests").build().await.unwrap();
    let deposit = || {
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        executor.execute(&DepositMoney, deposit).retry(RetryPolicy::none()).into_future()
    };
    let wallets = databases.repository::<Wallet>();
    let rewrite = || async {
        let work = async |transaction: Transaction| {
            let wallets = wallets.within(&transaction);
            let read = wallets.get(wallet).await.unwrap();
            wallets.update(read.apply(|_| {})).await
        };
        databases.transactions().in_transaction(work).await
    };
    let error = deposit().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("does not accept writes any more"), "{error}");
    match rewrite().await.unwrap_err() {
        TransactionError::Inner(WriteError::Database(error)) => {
            assert_eq!(error.kind(), DbErrorKind::Unavailable, "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(databases.pool_status(Route::Primary).size, 0, "the connection is closed");
    databases.fence_off("a key", 1).await.unwrap_err();
    // A server that is read-only may be a standby, which does not show every commit yet.
    let id = ActionId(Uuid::now_v7());
    let error = executor.outcome(id).await.unwrap_err();
    assert_eq!(error.kind(), DbErrorKind::Unavailable, "{error}");
    assert_eq!(databases.pool_status(Route::Primary).size, 0, "the connection is closed");

    operator.execute(&statements.promote).await;
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::NotCommitted);
    deposit().await.unwrap();
    rewrite().await.unwrap();
    databases.fence_off("a key", 2).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn on_postgres() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let database = url.rsplit('/').next().unwrap();
    let alter = format!("ALTER DATABASE {database}");
    let statements = Statements {
        demote: format!("{alter} SET default_transaction_read_only = on"),
        promote: format!("{alter} RESET default_transaction_read_only"),
    };
    connections_to_a_demoted_primary_are_left(&url, statements).await;
}

/// Two new wallets are sent together, refused together because one owner has a wallet already, and
/// sent one after the other. The first commits, and by its trigger makes the session read-only. It
/// is known to have committed, and so it is not sent again over the next connection.
#[tokio::test(flavor = "multi_thread")]
async fn what_committed_before_the_demotion_is_not_sent_again() {
    let url = PostgresServer::shared().await.unwrap().create_database().await.unwrap();
    let config = ScratchDatabase::config_of(&url).lanes(1).queue_limit(2);
    let ledger = Ledger::with_config(config).await;
    let wallet = ledger.open_wallets(1).await[0];
    PlainConnection::connect(&url).await.execute(DEMOTING_TRIGGER).await;
    let mut observer = Observer::connect(&url).await;
    let mut holder = PlainConnection::connect(&url).await;
    holder.execute("BEGIN").await;
    lock_wallet(&mut holder, wallet).await;

    let open = |owner: &str| {
        let opening = Opening { owner: owner.to_owned(), currency: "EUR".to_owned() };
        ledger.executor.execute(&OpenWallet, opening).retry(insist()).into_future()
    };
    let one_more = async || {
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        let call = ledger.executor.execute(&DepositMoney, deposit);
        call.deadline(Duration::from_millis(100)).await
    };
    let opening = async {
        bounded("the only lane is busy", observer.wait_for_blocked()).await;
        let releasing = async {
            bounded("both commits wait", filled(one_more)).await;
            holder.execute("COMMIT").await;
        };
        tokio::join!(biased; open("the last"), open("owner 0"), releasing)
    };
    let (deposited, (last, second, ())) = tokio::join!(ledger.deposit(wallet), opening);
    deposited.unwrap();
    last.unwrap();
    assert_eq!(second.unwrap_err().kind(), ErrorKind::Unique);
    ledger.assert_sound(1).await;
}

const DEMOTING_TRIGGER: &str = "
    CREATE UNIQUE INDEX ON wallets (owner);
    CREATE FUNCTION demote() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM set_config('default_transaction_read_only', 'on', false);
        RETURN NULL;
    END $$;
    CREATE TRIGGER demote AFTER INSERT ON wallets FOR EACH ROW
        WHEN (NEW.owner = 'the last') EXECUTE FUNCTION demote()";

/// A server of its own, because the setting is the server's.
#[tokio::test(flavor = "multi_thread")]
async fn on_mysql() {
    let server = MySqlServer::start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let statements = Statements {
        demote: "SET GLOBAL transaction_read_only = 1, GLOBAL read_only = 1".to_owned(),
        promote: "SET GLOBAL transaction_read_only = 0, GLOBAL read_only = 0".to_owned(),
    };
    connections_to_a_demoted_primary_are_left(&url, statements).await;
}

/// A server of its own, because the setting is the server's.
#[tokio::test(flavor = "multi_thread")]
async fn on_mariadb() {
    let server = MariaDbServer::start().await.unwrap();
    let url = server.create_database().await.unwrap();
    let statements = Statements {
        demote: "SET GLOBAL tx_read_only = 1, GLOBAL read_only = 1".to_owned(),
        promote: "SET GLOBAL tx_read_only = 0, GLOBAL read_only = 0".to_owned(),
    };
    connections_to_a_demoted_primary_are_left(&url, statements).await;
}
