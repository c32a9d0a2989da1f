//! Lanes whose connections break, idle or in the middle of a commit.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{ErrorKind, Outcome, RetryPolicy};
use ekbatan::config::DataSourceConfig;
use ekbatan::prelude::*;
use ekbatan_testkit::{PostgresServer, Proxy};
use sqlx::{Connection, PgConnection};

use crate::ledger::Ledger;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_died_while_idle_are_not_noticed_by_callers() {
    let server = PostgresServer::shared().await.unwrap();
    let ledger = Ledger::open(&server.create_database().await.unwrap()).await;
    let id = ledger.open_wallets(1).await[0];
    let mut admin = PgConnection::connect(ledger.url()).await.unwrap();
    for deposits in 1..=3 {
        sqlx::query("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
            .execute(&mut admin)
            .await
            .unwrap();
        ledger.deposit(id).await.unwrap();
        ledger.assert_sound(deposits).await;
    }
}

/// The line is cut while the server still works at the statement: the server may yet commit
/// it, so the lane must end that session before it decides anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_whose_line_is_cut_is_carried_through_exactly_once() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    let ledger = Ledger::open(&proxy.url_for(&url)).await;
    let id = ledger.open_wallets(1).await[0];
    let mut admin = PgConnection::connect(&url).await.unwrap();
    let mut holder = PgConnection::connect(&url).await.unwrap();
    for deposits in 1..=10 {
        let mut held = holder.begin().await.unwrap();
        sqlx::query("SELECT 1 FROM wallets FOR UPDATE").execute(&mut *held).await.unwrap();
        let cutting = async {
            wait_for_blocked(&mut admin).await;
            proxy.cut();
            proxy.restore();
            // The second sending blocks in the same place: the first one is gone.
            wait_for_blocked(&mut admin).await;
            held.commit().await.unwrap();
        };
        let (deposited, ()) = tokio::join!(ledger.deposit(id), cutting);
        assert_eq!(deposited.unwrap().balance, Decimal::from(deposits));
        ledger.assert_sound(deposits).await;
    }
}

/// Waits until exactly one session waits for the lock, and was not seen here before.
async fn wait_for_blocked(admin: &mut PgConnection) {
    loop {
        let blocked: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        )
        .fetch_one(&mut *admin)
        .await
        .unwrap();
        if blocked == 1 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_with_a_deadline_learns_the_outcome_of_a_stuck_commit_later() {
    let server = PostgresServer::shared().await.unwrap();
    let ledger = Ledger::open(&server.create_database().await.unwrap()).await;
    let id = ledger.open_wallets(1).await[0];
    let mut holder = PgConnection::connect(ledger.url()).await.unwrap();
    let mut held = holder.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM wallets FOR UPDATE").execute(&mut *held).await.unwrap();
    let deposit = support::wallet::Deposit { wallet: id, amount: Decimal::ONE };
    let call = ledger.executor.execute(&support::wallet::DepositMoney, deposit);
    let action = call.action_id();
    let answer = call.deadline(std::time::Duration::from_millis(300)).await;
    match answer {
        Err(ExecuteError::CommitUnknown { action: unknown, .. }) => assert_eq!(unknown, action),
        // A slow machine may pass the deadline before the commit is sent.
        Err(ExecuteError::Deadline { .. }) => {}
        other => panic!("{other:?}"),
    }
    held.commit().await.unwrap();
    let outcome = ledger.executor.outcome(action).await.unwrap();
    let committed = usize::from(outcome == Outcome::Committed);
    ledger.assert_sound(committed).await;
}

/// A neighbour locks the rows in the opposite order, and the database ends the commit.
#[tokio::test(flavor = "multi_thread")]
async fn a_deadlock_is_told_apart_and_retried_by_policy() {
    let server = PostgresServer::shared().await.unwrap();
    let ledger = Ledger::open(&server.create_database().await.unwrap()).await;
    let ids = ledger.open_wallets(2).await;
    let mut admin = PgConnection::connect(ledger.url()).await.unwrap();
    for (policy, expected) in [(RetryPolicy::none(), false), (RetryPolicy::default(), true)] {
        let mut neighbour = PgConnection::connect(ledger.url()).await.unwrap();
        // The neighbour is patient, so that the lane's session is the one that finds out.
        sqlx::query("SET deadlock_timeout = '10min'").execute(&mut neighbour).await.unwrap();
        let mut held = neighbour.begin().await.unwrap();
        let lock = "SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE";
        sqlx::query(lock).bind(ids[1].uuid()).execute(&mut *held).await.unwrap();
        let crossing = async {
            wait_for_blocked(&mut admin).await;
            sqlx::query(lock).bind(ids[0].uuid()).execute(&mut *held).await.unwrap();
            held.commit().await.unwrap();
        };
        let params = crate::concurrency::Rotation { wallets: ids.clone() };
        let call = ledger.executor.execute(&crate::concurrency::Rotate, params).retry(policy);
        let (answer, ()) = tokio::join!(call.into_future(), crossing);
        match answer {
            Ok(()) => assert!(expected),
            Err(error) => {
                assert!(!expected, "{error}");
                assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            }
        }
    }
}

/// A commit waits for a row that somebody else holds only so long, and its company does not
/// wait with it for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_somebody_holds_makes_one_commit_busy_and_no_other() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let config = DataSourceConfig::new(&url).lanes(1).connection_timeout(Duration::from_secs(2));
    let ledger = Ledger::with_config(config).await;
    let ids = ledger.open_wallets(3).await;
    let mut holder = PgConnection::connect(&url).await.unwrap();
    let mut held = holder.begin().await.unwrap();
    let lock = "SELECT 1 FROM wallets WHERE id = $1 FOR UPDATE";
    sqlx::query(lock).bind(ids[0].uuid()).execute(&mut *held).await.unwrap();
    let (blocked, first, second) =
        tokio::join!(ledger.deposit(ids[0]), ledger.deposit(ids[1]), ledger.deposit(ids[2]));
    assert_eq!(blocked.unwrap_err().kind(), ErrorKind::Busy);
    first.unwrap();
    second.unwrap();
    held.rollback().await.unwrap();
    ledger.deposit(ids[0]).await.unwrap();
    ledger.assert_sound(3).await;
}

/// A deposit whose line goes silent between its read and its commit.
struct OverASilentLine<'p>(&'p Proxy);

impl Action for OverASilentLine<'_> {
    const NAME: &'static str = "wallet.deposit_over_a_silent_line";
    type Params = support::wallet::Deposit;
    type Output = Stored<support::wallet::Wallet>;
    type Error = support::wallet::WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &support::wallet::Deposit,
    ) -> Result<Self::Output, support::wallet::WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        self.0.stall();
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        Ok(ctx.plan().update(wallet))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_over_a_line_that_goes_silent_is_settled_once_it_speaks_again() {
    let server = PostgresServer::shared().await.unwrap();
    let url = server.create_database().await.unwrap();
    let proxy = Proxy::start(("127.0.0.1", server.port())).await.unwrap();
    let config = DataSourceConfig::new(proxy.url_for(&url))
        .commit_timeout(Duration::from_millis(200))
        .settle_timeout(Duration::from_millis(300))
        .connection_timeout(Duration::from_secs(2));
    let ledger = Ledger::with_config(config).await;
    let id = ledger.open_wallets(1).await[0];
    let deposit = support::wallet::Deposit { wallet: id, amount: Decimal::ONE };
    let silent = OverASilentLine(&proxy);
    let call = ledger.executor.execute(&silent, deposit);
    let action = call.action_id();
    let answer = call.await.unwrap_err();
    assert_eq!(answer.kind(), ErrorKind::CommitUnknown, "{answer}");
    // The statement still lies in the line: nobody may say yet that it did not commit.
    let early = tokio::time::timeout(Duration::from_secs(1), ledger.executor.outcome(action)).await;
    assert!(early.is_err(), "{early:?}");
    proxy.resume();
    let outcome = ledger.executor.outcome(action).await.unwrap();
    ledger.assert_sound(usize::from(outcome == Outcome::Committed)).await;
    ledger.deposit(id).await.unwrap();
}
