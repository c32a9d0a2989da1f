//! Lanes whose connections break while they are idle or during a commit, and rows that another
//! session has locked.

use std::collections::HashSet;
use std::convert::Infallible;
use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::{ErrorKind, Outcome, RetryPolicy};
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use support::wallet::{Deposit, DepositMoney, Wallet};
use support::{Dialect, InterruptedDeposit, PlainConnection, ScratchDatabase, until};

use crate::bounded;
use crate::concurrency::{Rotate, Rotation};
use crate::ledger::{Ledger, proxied};
use crate::other_sessions::{Gate, Observer, lock_wallet};

on_every_database! {
    only postgres and mysql and mariadb:
    killed_idle_sessions_are_replaced_without_an_error,
    a_commit_whose_connection_is_cut_is_applied_exactly_once,
    a_lost_answer_is_found_although_a_relay_deletes_what_it_delivered,
    the_outcome_of_a_commit_past_its_deadline_can_be_asked_later,
    a_deadlock_has_its_own_kind_and_is_retried_by_policy,
    a_locked_row_makes_only_its_own_commit_busy,
    a_commit_on_a_stalled_connection_is_settled_when_it_resumes,
    an_outcome_waits_while_the_commit_may_still_happen,
    a_stale_commit_drops_out_of_its_fold_alone,
}

async fn killed_idle_sessions_are_replaced_without_an_error(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let mut observer = Observer::connect(ledger.url()).await;
    for deposits in 1..=3 {
        observer.kill_other_sessions().await;
        ledger.deposit(id).await.unwrap();
        ledger.assert_sound(deposits).await;
    }
}

/// The connection is cut while the server runs the statement. The server may still commit, so
/// the lane must end that session before it decides the outcome.
async fn a_commit_whose_connection_is_cut_is_applied_exactly_once(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let (through, proxy) = proxied(&url).await;
    let ledger = Ledger::open(&through).await;
    let id = ledger.open_wallets(1).await[0];
    let mut observer = Observer::connect(&url).await;
    let mut holder = PlainConnection::connect(&url).await;
    for deposits in 1..=10 {
        holder.execute("BEGIN").await;
        lock_wallet(&mut holder, id).await;
        let cutting = async {
            let first = observer.wait_for_blocked().await;
            proxy.cut();
            proxy.restore();
            // The lane sends the commit again, on another session.
            observer.wait_for_successor_of(&first).await;
            holder.execute("COMMIT").await;
        };
        let (deposited, ()) = tokio::join!(ledger.deposit(id), cutting);
        assert_eq!(deposited.unwrap().balance, Decimal::from(deposits));
        ledger.assert_sound(deposits).await;
    }
}

/// The commit succeeds, its answer is lost, and a relay delivers the event and deletes its row
/// before the lane asks.
async fn a_lost_answer_is_found_although_a_relay_deletes_what_it_delivered(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let (through, proxy) = proxied(&url).await;
    let ledger = Ledger::open(&through).await;
    let id = ledger.open_wallets(1).await[0];
    let direct = ScratchDatabase::at(&url);
    let events = direct.eventlog("events");
    let mut observer = Observer::connect(&url).await;
    let mut holder = PlainConnection::connect(&url).await;
    for deposits in 1..=5 {
        let written = direct.count_events().await;
        holder.execute("BEGIN").await;
        lock_wallet(&mut holder, id).await;
        let relaying = async {
            observer.wait_for_blocked().await;
            proxy.stall();
            holder.execute("COMMIT").await;
            until("the server commits", async || direct.count_events().await > written).await;
            holder.execute(&format!("UPDATE {events} SET delivered = true")).await;
            let _ = holder.try_execute(&format!("DELETE FROM {events} WHERE delivered")).await;
            proxy.cut();
            proxy.resume();
            proxy.restore();
        };
        let (deposited, ()) = tokio::join!(ledger.deposit(id), relaying);
        assert_eq!(deposited.unwrap().balance, Decimal::from(deposits));
        let stored = ledger.databases.repository::<Wallet>().get(id).await.unwrap();
        assert_eq!(stored.balance, Decimal::from(deposits), "deposited twice");
    }
}

/// The answer says what is known: after `Deadline` nothing is ever committed, and after
/// `CommitUnknown` the outcome can be asked.
async fn the_outcome_of_a_commit_past_its_deadline_can_be_asked_later(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let id = ledger.open_wallets(1).await[0];
    let mut committed = 0;
    // On a slow machine the deadline may pass before a lane takes the commit.
    for _ in 0..20 {
        let mut holder = PlainConnection::connect(ledger.url()).await;
        holder.execute("BEGIN").await;
        lock_wallet(&mut holder, id).await;
        let deposit = Deposit { wallet: id, amount: Decimal::ONE };
        let call = ledger.executor.execute(&DepositMoney, deposit);
        let action = call.action_id();
        let error = call.deadline(Duration::from_millis(300)).await.unwrap_err();
        holder.execute("COMMIT").await;
        let outcome = bounded("the outcome", ledger.executor.outcome(action)).await.unwrap();
        committed += usize::from(outcome == Outcome::Committed);
        ledger.assert_sound(committed).await;
        match error {
            ExecuteError::CommitUnknown { action: unknown, .. } => {
                return assert_eq!(unknown, action);
            }
            ExecuteError::Deadline { .. } => assert_eq!(outcome, Outcome::NotCommitted),
            other => panic!("{other:?}"),
        }
    }
    panic!("in no round did a lane take the commit before its deadline");
}

/// The lane gives up its session, whose commit takes too long, and cannot open another one to
/// ask. Only then the callers hear "unknown". Reads go on, over connections that are open.
async fn an_outcome_waits_while_the_commit_may_still_happen(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (through, proxy) = proxied(&scratch.url).await;
    let config = ScratchDatabase::config_of(&through)
        .commit_timeout(Duration::from_secs(1))
        .settle_timeout(Duration::from_millis(300));
    let ids = Ledger::open(&scratch.url).await.open_wallets(LOSING_ROUNDS).await;
    let ledger = Ledger::with_config(config).await;
    let (action, gate) = lose_commit(&ledger, &scratch.url, &proxy, &ids).await;
    // The line of the reads is not silent, so an answer would come at once.
    ledger.databases.repository::<Wallet>().get(ids[0]).await.unwrap();
    let asking = ledger.executor.outcome(action);
    let early = tokio::time::timeout(Duration::from_secs(2), asking).await;
    assert!(early.is_err(), "the commit may still happen: {early:?}");
    proxy.restore();
    let asking = ledger.executor.outcome(action);
    let outcome = bounded("the outcome", asking).await.unwrap();
    gate.open().await;
    ledger.assert_sound(usize::from(outcome == Outcome::Committed)).await;
}

/// The number of wallets that [`lose_commit`] needs.
pub const LOSING_ROUNDS: usize = 5;

/// Leaves a commit behind a closed gate, where it may still happen: the lane gives up its session,
/// and cannot open another one to ask. Every round takes another wallet.
pub async fn lose_commit(
    ledger: &Ledger,
    url: &str,
    proxy: &Proxy,
    wallets: &[Id<Wallet>],
) -> (ActionId, Gate) {
    for wallet in wallets {
        let gate = Gate::closed(url, *wallet).await;
        let mut observer = Observer::connect(url).await;
        let deposit = Deposit { wallet: *wallet, amount: Decimal::ONE };
        let call = ledger.executor.execute(&DepositMoney, deposit);
        let action = call.action_id();
        let mut is_refusing = false;
        let refusing = async {
            observer.wait_for_blocked().await;
            proxy.refuse();
            is_refusing = true;
            std::future::pending::<Infallible>().await
        };
        let answer = async {
            tokio::select! {
                answer = call.into_future() => answer,
                never = refusing => match never {},
            }
        };
        let error = bounded("a lost commit", answer).await.unwrap_err();
        match error.kind() {
            ErrorKind::CommitUnknown if is_refusing => return (action, gate),
            // On a busy machine the lane may have asked or tried again before it was refused.
            ErrorKind::CommitUnknown | ErrorKind::Unavailable => {}
            _ => panic!("{error}"),
        }
        proxy.restore();
        let outcome = bounded("the outcome", ledger.executor.outcome(action)).await.unwrap();
        assert_eq!(outcome, Outcome::NotCommitted, "the gate is closed");
        gate.open().await;
    }
    panic!("in no round were connections refused before the lane gave up its session");
}

/// Another session locks the rows in the opposite order, and the server aborts the commit.
async fn a_deadlock_has_its_own_kind_and_is_retried_by_policy(dialect: Dialect) {
    let ledger = Ledger::new(dialect).await;
    let mut ids = ledger.open_wallets(3).await;
    // The order in which a commit locks them.
    ids.sort_by_key(|id| id.uuid());
    let mut observer = Observer::connect(ledger.url()).await;
    let mut holder = PlainConnection::connect(ledger.url()).await;
    for (policy, succeeds) in [(RetryPolicy::none(), false), (RetryPolicy::default(), true)] {
        let mut other = PlainConnection::connect(ledger.url()).await;
        make_deadlock_winner(dialect, &mut other).await;
        lock_wallet(&mut other, ids[2]).await;
        holder.execute("BEGIN").await;
        lock_wallet(&mut holder, ids[1]).await;
        let crossing = async {
            // The commit has locked the first row, and waits for the second.
            observer.wait_for_blocked().await;
            // PostgreSQL looks for a deadlock once in each wait. So the commit begins to wait for
            // the third row when the circle is complete.
            let closing = async {
                bounded("both wait", observer.wait_for_two_blocked()).await;
                holder.execute("COMMIT").await;
            };
            tokio::join!(lock_wallet(&mut other, ids[0]), closing);
            other.execute("COMMIT").await;
        };
        let params = Rotation { wallets: ids.clone() };
        let call = ledger.executor.execute(&Rotate, params).retry(policy);
        let (answer, ()) = tokio::join!(call.into_future(), crossing);
        match answer {
            Ok(()) => assert!(succeeds),
            Err(error) => {
                assert!(!succeeds, "{error}");
                assert_eq!(error.kind(), ErrorKind::Deadlock, "{error}");
            }
        }
    }
}

/// Begins a transaction that the server does not abort when it detects a deadlock.
async fn make_deadlock_winner(dialect: Dialect, connection: &mut PlainConnection) {
    if dialect == Dialect::Postgres {
        // The session that waits for `deadlock_timeout` first aborts itself.
        connection.execute("SET deadlock_timeout = '10min'; BEGIN").await;
    } else {
        // The server aborts the transaction that has written less.
        let rows = ", (1)".repeat(500);
        connection.execute("CREATE TABLE IF NOT EXISTS ballast (n int)").await;
        connection.execute(&format!("BEGIN; INSERT INTO ballast VALUES (1){rows}")).await;
    }
}

/// A commit waits for a locked row until its timeout, and the other commits of its fold do not
/// wait with it.
async fn a_locked_row_makes_only_its_own_commit_busy(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let ids = Ledger::open(&url).await.open_wallets(3).await;
    let config = ScratchDatabase::config_of(&url).lanes(1);
    let ledger = Ledger::impatient(config.connection_timeout(Duration::from_secs(2))).await;
    ledger.open_wallet_patiently().await;
    let mut holder = PlainConnection::connect(&url).await;
    holder.execute("BEGIN").await;
    lock_wallet(&mut holder, ids[0]).await;
    let (blocked, first, second) =
        tokio::join!(ledger.deposit(ids[0]), ledger.deposit(ids[1]), ledger.deposit(ids[2]));
    assert_eq!(blocked.unwrap_err().kind(), ErrorKind::Busy);
    first.unwrap();
    second.unwrap();
    holder.execute("ROLLBACK").await;
    ledger.deposit(ids[0]).await.unwrap();
    ledger.assert_sound(3).await;
}

async fn a_commit_on_a_stalled_connection_is_settled_when_it_resumes(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let (through, proxy) = proxied(&url).await;
    Ledger::open(&url).await;
    // A second lane would have no connection yet, and could not send the commit.
    let config = ScratchDatabase::config_of(&through)
        .lanes(1)
        .commit_timeout(Duration::from_millis(200))
        .settle_timeout(Duration::from_millis(300))
        .connection_timeout(Duration::from_secs(2));
    let ledger = Ledger::impatient(config).await;
    let id = ledger.open_wallet_patiently().await;
    let deposit = Deposit { wallet: id, amount: Decimal::ONE };
    let stalling = InterruptedDeposit(|_| async { proxy.stall() });
    let call = ledger.executor.execute(&stalling, deposit);
    let action = call.action_id();
    let error = call.await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CommitUnknown, "{error}");
    // The commit is still on its way to the server, so its outcome is unknown.
    let early = tokio::time::timeout(Duration::from_secs(1), ledger.executor.outcome(action)).await;
    assert!(early.is_err(), "{early:?}");
    proxy.resume();
    let outcome = ledger.executor.outcome(action).await.unwrap();
    ledger.assert_sound(usize::from(outcome == Outcome::Committed)).await;
    Ledger::open(&url).await.deposit(id).await.unwrap();
}

mod of_a_lost_line {
    use super::*;

    on_every_database! {
        only postgres:
        a_commit_is_settled_although_the_question_is_never_answered,
        a_question_that_waits_for_a_table_leaves_no_session_behind,
    }

    /// The sessions that wait for a table to say what committed.
    const ASKING: &str = "FROM pg_stat_activity WHERE datname = current_database() \
                          AND wait_event_type = 'Lock' AND query LIKE '%action_id = ANY%'";

    /// What a commit needs that waits at a gate, behind a proxy.
    struct WaitingCommit {
        scratch: ScratchDatabase,
        proxy: Proxy,
        ledger: Ledger,
        wallet: Id<Wallet>,
    }

    impl WaitingCommit {
        async fn prepare(dialect: Dialect) -> (Self, Gate) {
            let scratch = ScratchDatabase::create(dialect).await;
            let (through, proxy) = proxied(&scratch.url).await;
            Ledger::open(&scratch.url).await;
            let config = ScratchDatabase::config_of(&through)
                .lanes(1)
                .connection_timeout(Duration::from_secs(20))
                .settle_timeout(Duration::from_secs(600));
            let ledger = Ledger::impatient(config).await;
            let wallet = ledger.open_wallet_patiently().await;
            let gate = Gate::closed(&scratch.url, wallet).await;
            (Self { scratch, proxy, ledger, wallet }, gate)
        }

        /// Cuts the line once the commit waits, and locks the table that says whether it committed. Returns the
        /// session that holds the lock.
        async fn lose(&self) -> PlainConnection {
            let mut observer = Observer::connect(&self.scratch.url).await;
            let mut locker = self.scratch.connect().await;
            bounded("the commit waits", observer.wait_for_blocked()).await;
            // It gets the table when the lane has ended the session of the commit.
            let lock = locker.execute("BEGIN; LOCK TABLE eventlog.events IN ACCESS EXCLUSIVE MODE");
            let losing = async {
                bounded("the table is waited for", observer.wait_for_two_blocked()).await;
                self.proxy.cut();
                self.proxy.restore();
            };
            tokio::join!(lock, losing);
            locker
        }
    }

    /// The server has received the question what committed, and then its line becomes silent.
    async fn a_commit_is_settled_although_the_question_is_never_answered(dialect: Dialect) {
        let (commit, gate) = WaitingCommit::prepare(dialect).await;
        let silencing = async {
            let mut locker = commit.lose().await;
            until("the lane asks", async || {
                !commit.scratch.select(&["pid"], ASKING).await.is_empty()
            })
            .await;
            commit.proxy.silence();
            locker.execute("ROLLBACK").await;
            gate.open().await;
        };
        let deposited = bounded("the deposit", commit.ledger.deposit(commit.wallet));
        let (deposited, ()) = tokio::join!(deposited, silencing);
        assert_eq!(deposited.unwrap().balance, Decimal::ONE);
        Ledger::open(&commit.scratch.url).await.assert_sound(1).await;
    }

    async fn a_question_that_waits_for_a_table_leaves_no_session_behind(dialect: Dialect) {
        let (commit, gate) = WaitingCommit::prepare(dialect).await;
        let asking = async {
            let mut locker = commit.lose().await;
            let mut asked = HashSet::new();
            until("the lane has asked three times", async || {
                let asking = commit.scratch.select(&["pid", "query_start"], ASKING).await;
                // The server may end one while the next one begins.
                assert!(asking.len() <= 2, "{asking:?}");
                asked.extend(asking);
                asked.len() >= 3
            })
            .await;
            locker.execute("ROLLBACK").await;
            gate.open().await;
        };
        let deposited = bounded("the deposit", commit.ledger.deposit(commit.wallet));
        let (deposited, ()) = tokio::join!(deposited, asking);
        assert_eq!(deposited.unwrap().balance, Decimal::ONE);
    }
}

/// Two executors with one lane each fold their commits. A stale commit drops out of its fold, and
/// the others commit.
async fn a_stale_commit_drops_out_of_its_fold_alone(dialect: Dialect) {
    let url = ScratchDatabase::create(dialect).await.url;
    let ledger = Ledger::with_config(ScratchDatabase::config_of(&url).lanes(1)).await;
    let other = Ledger::with_config(ScratchDatabase::config_of(&url).lanes(1)).await;
    let ids = ledger.open_wallets(4).await;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..32_usize {
        let executor = [&ledger, &other][task % 2].executor.clone();
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
