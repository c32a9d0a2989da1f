//! Lanes on MySQL and MariaDB whose connections break, idle or in the middle of a commit, and
//! rows that somebody else holds.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{ErrorKind, Outcome, RetryPolicy};
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use sqlx::{Connection, MySqlConnection};
use support::wallet::{Deposit, DepositMoney, Wallet, WalletError};
use support::{Dialect, ScratchDatabase};

use crate::concurrency::{Rotate, Rotation};
use crate::ledger::{Ledger, proxied};

on_every_database!(only mysql and mariadb:
    sessions_that_died_while_idle_are_not_noticed_by_callers,
    a_commit_whose_line_is_cut_is_carried_through_exactly_once,
    a_caller_with_a_deadline_learns_the_outcome_of_a_stuck_commit_later,
    a_deadlock_is_told_apart_and_retried_by_policy,
    a_row_that_somebody_holds_makes_one_commit_busy_and_no_other,
    a_commit_over_a_line_that_goes_silent_is_settled_once_it_speaks_again,
    stale_neighbours_in_one_flight_take_nobody_with_them,
);

async fn connect(url: &str) -> MySqlConnection {
    MySqlConnection::connect(&url.replacen("mariadb:", "mysql:", 1)).await.unwrap()
}

/// Kills every other session on the database.
async fn kill_all(admin: &mut MySqlConnection) {
    let sessions: Vec<u64> = sqlx::query_scalar(
        "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()",
    )
    .fetch_all(&mut *admin)
    .await
    .unwrap();
    for session in sessions {
        let _ = sqlx::raw_sql(sqlx::AssertSqlSafe(format!("KILL {session}")))
            .execute(&mut *admin)
            .await;
    }
}

/// The session that writes wallets right now, if there is exactly one.
///
/// Not from `innodb_trx`: the servers answer that from a cache, which whoever asks often
/// keeps from being renewed.
async fn writing(admin: &mut MySqlConnection) -> Option<u64> {
    let sessions: Vec<u64> = sqlx::query_scalar(
        "SELECT CAST(id AS UNSIGNED) FROM information_schema.processlist \
         WHERE db = DATABASE() AND command = 'Query' AND info LIKE 'UPDATE `wallets`%'",
    )
    .fetch_all(admin)
    .await
    .unwrap();
    (sessions.len() == 1).then(|| sessions[0])
}

/// Waits until one session, another than `before`, has been writing for a while: it waits for
/// a row that is held.
async fn wait_for_blocked(admin: &mut MySqlConnection, before: Option<u64>) -> Option<u64> {
    loop {
        let first = writing(admin).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
        if first.is_some() && first != before && writing(admin).await == first {
            return first;
        }
    }
}

async fn hold(holder: &mut MySqlConnection, wallet: Id<Wallet>) {
    sqlx::query("SELECT 1 FROM wallets WHERE id = ? FOR UPDATE")
        .bind(wallet.to_string())
        .fetch_all(holder)
        .await
        .unwrap();
}

async fn sessions_that_died_while_idle_are_not_noticed_by_callers(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let mut admin = connect(ledger.url()).await;
    for deposits in 1..=3 {
        kill_all(&mut admin).await;
        ledger.deposit(id).await.unwrap();
        ledger.assert_sound(deposits).await;
    }
}

/// The line is cut while the server still works at the packet: the server may yet commit it,
/// so the lane must end that session before it decides anything.
async fn a_commit_whose_line_is_cut_is_carried_through_exactly_once(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let (through, proxy) = proxied(&url).await;
    let ledger = Ledger::open(&through).await;
    let id = ledger.open_wallets(1).await[0];
    let mut admin = connect(&url).await;
    let mut holder = connect(&url).await;
    for deposits in 1..=10 {
        let mut held = holder.begin().await.unwrap();
        hold(&mut held, id).await;
        let cutting = async {
            let first = wait_for_blocked(&mut admin, None).await;
            proxy.cut();
            proxy.restore();
            // The second sending blocks in the same place: the first one is gone.
            wait_for_blocked(&mut admin, first).await;
            held.commit().await.unwrap();
        };
        let (deposited, ()) = tokio::join!(ledger.deposit(id), cutting);
        assert_eq!(deposited.unwrap().balance, Decimal::from(deposits));
        ledger.assert_sound(deposits).await;
    }
}

async fn a_caller_with_a_deadline_learns_the_outcome_of_a_stuck_commit_later(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let mut holder = connect(ledger.url()).await;
    let mut held = holder.begin().await.unwrap();
    hold(&mut held, id).await;
    let deposit = Deposit { wallet: id, amount: Decimal::ONE };
    let call = ledger.executor.execute(&DepositMoney, deposit);
    let action = call.action_id();
    match call.deadline(Duration::from_millis(300)).await {
        Err(ExecuteError::CommitUnknown { action: unknown, .. }) => assert_eq!(unknown, action),
        // A slow machine may pass the deadline before the commit is sent.
        Err(ExecuteError::Deadline { .. }) => {}
        other => panic!("{other:?}"),
    }
    held.commit().await.unwrap();
    let outcome = ledger.executor.outcome(action).await.unwrap();
    ledger.assert_sound(usize::from(outcome == Outcome::Committed)).await;
}

/// A neighbour locks the rows in the opposite order, and the server ends the commit, which
/// has written less than the neighbour.
async fn a_deadlock_is_told_apart_and_retried_by_policy(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let ids = ledger.open_wallets(2).await;
    let mut admin = connect(ledger.url()).await;
    sqlx::raw_sql("CREATE TABLE ballast (n int)").execute(&mut admin).await.unwrap();
    for (policy, expected) in [(RetryPolicy::none(), false), (RetryPolicy::default(), true)] {
        let mut neighbour = connect(ledger.url()).await;
        let mut held = neighbour.begin().await.unwrap();
        let ballast = format!("INSERT INTO ballast VALUES (1){}", ", (1)".repeat(500));
        sqlx::raw_sql(sqlx::AssertSqlSafe(ballast)).execute(&mut *held).await.unwrap();
        hold(&mut held, ids[1]).await;
        let crossing = async {
            wait_for_blocked(&mut admin, None).await;
            hold(&mut held, ids[0]).await;
            held.commit().await.unwrap();
        };
        let params = Rotation { wallets: ids.clone() };
        let call = ledger.executor.execute(&Rotate, params).retry(policy);
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
async fn a_row_that_somebody_holds_makes_one_commit_busy_and_no_other(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let config =
        ScratchDatabase::config_of(&url).lanes(1).connection_timeout(Duration::from_secs(2));
    let ledger = Ledger::with_config(config).await;
    let ids = ledger.open_wallets(3).await;
    let mut holder = connect(&url).await;
    let mut held = holder.begin().await.unwrap();
    hold(&mut held, ids[0]).await;
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
    type Params = Deposit;
    type Output = Stored<Wallet>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<Self::Output, WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        self.0.stall();
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        Ok(ctx.plan().update(wallet))
    }
}

async fn a_commit_over_a_line_that_goes_silent_is_settled_once_it_speaks_again(dialect: Dialect) {
    let (url, proxy) = proxied(&ScratchDatabase::create(dialect).await.url).await;
    let config = ScratchDatabase::config_of(&url)
        .commit_timeout(Duration::from_millis(200))
        .settle_timeout(Duration::from_millis(300))
        .connection_timeout(Duration::from_secs(2));
    let ledger = Ledger::with_config(config).await;
    let id = ledger.open_wallets(1).await[0];
    let deposit = Deposit { wallet: id, amount: Decimal::ONE };
    let silent = OverASilentLine(&proxy);
    let call = ledger.executor.execute(&silent, deposit);
    let action = call.action_id();
    let answer = call.await.unwrap_err();
    assert_eq!(answer.kind(), ErrorKind::CommitUnknown, "{answer}");
    // The packet still lies in the line: nobody may say yet that it did not commit.
    let early = tokio::time::timeout(Duration::from_secs(1), ledger.executor.outcome(action)).await;
    assert!(early.is_err(), "{early:?}");
    proxy.resume();
    let outcome = ledger.executor.outcome(action).await.unwrap();
    ledger.assert_sound(usize::from(outcome == Outcome::Committed)).await;
    ledger.deposit(id).await.unwrap();
}

/// Two processes with one lane each fold what they have: whoever is stale in a flight drops
/// out alone, and nobody is told anything that is not so.
async fn stale_neighbours_in_one_flight_take_nobody_with_them(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let ledger = Ledger::with_config(ScratchDatabase::config_of(&url).lanes(1)).await;
    let neighbour = Ledger::with_config(ScratchDatabase::config_of(&url).lanes(1)).await;
    let ids = ledger.open_wallets(4).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..32_usize {
        let executor = [&ledger, &neighbour][task % 2].executor.clone();
        let id = ids[task / 2 % ids.len()];
        tasks.spawn(async move {
            for _ in 0..20 {
                let deposit = Deposit { wallet: id, amount: Decimal::ONE };
                executor.execute(&DepositMoney, deposit).await.unwrap();
            }
        });
    }
    tasks.join_all().await;
    ledger.assert_sound(32 * 20).await;
}
