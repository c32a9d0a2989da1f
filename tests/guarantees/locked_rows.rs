//! Rows that another session keeps locked, and commits of other rows in the same lane.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::config::DataSourceConfig;
use ekbatan::db::DbErrorKind;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::WriteError;
use futures_util::FutureExt;
use support::wallet::{Deposit, DepositMoney, OpenWallet, Opening, Wallet};
use support::{Dialect, PlainConnection, ScratchDatabase, until};
use tokio::sync::mpsc;

use crate::bounded;
use crate::ledger::Ledger;
use crate::orders::{OrderLine, OrderState, Orders};
use crate::other_sessions::{Gate, Observer, lock_wallet};
use crate::waiting::{filled, insist};

on_every_database! {
    only postgres and mysql and mariadb:
    locked_rows_delay_other_commits_by_one_lock_timeout,
}

mod of_the_server {
    use super::*;

    // A statement timeout of MySQL ends only statements that select.
    on_every_database! {
        only postgres and mariadb:
        a_statement_timeout_ends_no_wait_for_a_locked_row,
        a_commit_of_a_locked_row_is_busy_however_short_the_statement_timeout,
        a_commit_that_waits_for_an_insert_is_busy_before_the_statement_timeout,
        a_locked_table_makes_only_its_own_commits_busy,
    }
}

mod of_the_lane {
    use super::*;

    on_every_database! {
        only postgres: a_commit_timeout_ends_no_wait_for_a_locked_row,
    }
}

const LOCKED: usize = 10;
const FREE: usize = 10;

fn deposit(wallet: Id<Wallet>) -> Deposit {
    Deposit { wallet, amount: Decimal::ONE }
}

async fn locked_rows_delay_other_commits_by_one_lock_timeout(dialect: Dialect) {
    locked_rows_wait_apart(dialect, |config| {
        config.connection_timeout(Duration::from_secs(8)).commit_timeout(Duration::from_secs(20))
    })
    .await;
}

async fn a_statement_timeout_ends_no_wait_for_a_locked_row(dialect: Dialect) {
    locked_rows_wait_apart(dialect, |config| {
        let long = Duration::from_secs(300);
        let config = config.connection_timeout(long).commit_timeout(long * 4);
        config.statement_timeout(Duration::from_secs(20))
    })
    .await;
}

async fn a_commit_timeout_ends_no_wait_for_a_locked_row(dialect: Dialect) {
    locked_rows_wait_apart(dialect, |config| {
        let config = config.connection_timeout(Duration::from_secs(300));
        config.commit_timeout(Duration::from_secs(20))
    })
    .await;
}

/// MariaDB has no lock timeout below a second, so there the statement timeout ends the wait.
async fn a_commit_of_a_locked_row_is_busy_however_short_the_statement_timeout(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let id = Ledger::open(&scratch.url).await.open_wallets(1).await[0];
    let config = scratch.config().statement_timeout(Duration::from_secs(1));
    let databases = Databases::connect(&config.into()).await.unwrap();
    let executor = ActionExecutor::builder(&databases, "tests").build().await.unwrap();
    let mut holder = PlainConnection::connect(&scratch.url).await;
    holder.execute("BEGIN").await;
    lock_wallet(&mut holder, id).await;
    // On a slow machine the read before the commit may take longer than the timeout.
    until("the commit is busy", async || {
        let error = executor.execute(&DepositMoney, deposit(id)).await.unwrap_err();
        error.kind() == ErrorKind::Busy
    })
    .await;
}

/// No row of the commit is locked: it waits for the row that another transaction inserts.
async fn a_commit_that_waits_for_an_insert_is_busy_before_the_statement_timeout(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let ledger = Ledger::open(&scratch.url).await;
    ledger.open_wallets(1).await;
    scratch.execute("CREATE UNIQUE INDEX owners ON wallets (owner)").await;
    let config = scratch.config().statement_timeout(Duration::from_secs(10));
    let impatient = Ledger::with_config(config).await;
    let mut holder = PlainConnection::connect(&scratch.url).await;
    holder.execute("BEGIN").await;
    let columns = "currency, balance, state, version, created_date, updated_date";
    let id = uuid::Uuid::now_v7();
    holder
        .execute(&format!(
            "INSERT INTO wallets (id, owner, {columns}) SELECT '{id}', 'a name', {columns} FROM wallets"
        ))
        .await;
    let opening = Opening { owner: "a name".to_owned(), currency: "EUR".to_owned() };
    let error = impatient.executor.execute(&OpenWallet, opening).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy, "{error}");
}

/// A commit that shares a statement with one of a locked table gets through. MariaDB waits for the table
/// until the statement timeout.
async fn a_locked_table_makes_only_its_own_commits_busy(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let [first, other] = orders.add(2).await.try_into().unwrap();
    let line = OrderLine { id: Id::new(), order_id: first.id, state: OrderState::Open };
    let line = orders.databases.repository().add(New::new(line, ())).await.unwrap();
    // A lock of the other table would concern this one, too.
    orders.scratch.execute("ALTER TABLE order_lines DROP CONSTRAINT line_order").await;
    let mut config = orders.scratch.config().lanes(1).connection_timeout(Duration::from_secs(8));
    if dialect == Dialect::MariaDb {
        config = config.statement_timeout(Duration::from_secs(10));
    }
    let orders = Orders::with_config(config).await;
    let (repository, lines) = (orders.databases.repository(), orders.databases.repository());
    // The lane and the repositories know their tables.
    let [first, other] = [first, other].map(|order| order.apply(|order| order.total += 1));
    let first = repository.update(first).await.unwrap();
    let line = lines.update(line.apply(|line| line.order_id = other.id)).await.unwrap();

    let mut observer = Observer::connect(&orders.scratch.url).await;
    let (mut holder, mut locker) = (orders.scratch.connect().await, orders.scratch.connect().await);
    holder.execute("BEGIN").await;
    holder.execute(&format!("SELECT 1 FROM orders WHERE id = '{}' FOR UPDATE", first.id)).await;
    let first = repository.update(first.apply(|order| order.total += 1));
    let mut first = Box::pin(first);
    // The lane is busy until the other two wait for it.
    bounded("the lane is busy", async {
        tokio::select! {
            answer = &mut first => panic!("{answer:?}"),
            _ = observer.wait_for_blocked() => {}
        }
    })
    .await;
    let lock = if dialect == Dialect::Postgres {
        "BEGIN; LOCK TABLE order_lines IN ACCESS EXCLUSIVE MODE"
    } else {
        "LOCK TABLES order_lines WRITE"
    };
    locker.execute(lock).await;
    let other_id = other.id;
    let mut other = Box::pin(repository.update(other));
    let mut line = Box::pin(lines.update(line.apply(|line| line.order_id = other_id)));
    assert!((&mut other).now_or_never().is_none() && (&mut line).now_or_never().is_none());
    holder.execute("ROLLBACK").await;
    // On a slow machine the first one may have waited for too long.
    let commits = async { tokio::join!(first, other, line) };
    let (_, other, line) = bounded("the commits", commits).await;
    other.unwrap();
    match line.unwrap_err() {
        WriteError::Database(error) => {
            assert_eq!(error.kind(), DbErrorKind::LockTimeout, "{error}")
        }
        other => panic!("{other:?}"),
    }
    // Nothing stays locked by the lane.
    holder.execute("BEGIN").await;
    holder.execute("SELECT 1 FROM orders FOR UPDATE NOWAIT").await;
}

/// One lane takes commits of locked rows and of others at once. It answers the others after it
/// waited once; the callers of the locked rows wait on, and each of them learns that its row is
/// locked.
async fn locked_rows_wait_apart(
    dialect: Dialect,
    set: impl FnOnce(DataSourceConfig) -> DataSourceConfig,
) {
    let scratch = ScratchDatabase::create(dialect).await;
    // The lane stays busy until all commits wait for it: none of them may time out before.
    let config = set(scratch.config().lanes(1).queue_limit(LOCKED + FREE));
    let ledger = Arc::new(Ledger::with_config(config).await);
    let ids = ledger.open_wallets(1 + LOCKED + FREE).await;
    let mut observer = Observer::connect(&scratch.url).await;
    // No lock timeout ends this commit, however long the others take to arrive.
    let gate = Gate::closed(&scratch.url, ids[0]).await;
    let mut holder = PlainConnection::connect(&scratch.url).await;
    holder.execute("BEGIN").await;
    for id in &ids[1..=LOCKED] {
        lock_wallet(&mut holder, *id).await;
    }
    let busy = tokio::spawn({
        let (ledger, id) = (ledger.clone(), ids[0]);
        async move { ledger.deposit(id).await }
    });
    bounded("the lane is busy", observer.wait_for_blocked()).await;
    let (answers, mut answered) = mpsc::unbounded_channel();
    for (n, id) in ids[1..].iter().copied().enumerate() {
        let (ledger, answers) = (ledger.clone(), answers.clone());
        tokio::spawn(async move {
            let call = ledger.executor.execute(&DepositMoney, deposit(id)).retry(insist());
            let answer = call.await;
            let _ = answers.send((n < LOCKED, answer));
        });
    }
    let one_more = async || {
        let call = ledger.executor.execute(&DepositMoney, deposit(ids[0]));
        call.deadline(Duration::from_millis(100)).await
    };
    bounded("all commits wait", filled(one_more)).await;
    gate.open().await;
    bounded("the first commit", busy).await.unwrap().unwrap();
    for _ in 0..FREE {
        let (locked, answer) = bounded("a commit of a free row", answered.recv()).await.unwrap();
        assert!(!locked, "a commit of a locked row was answered first: {answer:?}");
        answer.unwrap();
    }
    // The lane is not occupied by those that still wait.
    bounded("a later commit", ledger.deposit(ids[0])).await.unwrap();
    for _ in 0..LOCKED {
        let (locked, answer) = bounded("a commit of a locked row", answered.recv()).await.unwrap();
        let error = answer.unwrap_err();
        assert!(locked && error.kind() == ErrorKind::Busy, "{error}");
    }
    holder.execute("ROLLBACK").await;
    bounded("a commit of a row that is free again", ledger.deposit(ids[1])).await.unwrap();
    ledger.assert_sound(1 + FREE + 2).await;
}
