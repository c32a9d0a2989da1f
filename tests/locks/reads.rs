//! Reads under a lease: no earlier lease can change the rows any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::action::Fence;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan::repository::PageRequest;
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row};
use tokio::task::JoinHandle;

use crate::database::TestDatabase;
use support::wallet::{
    Deposit, DepositMoney, OpenWallet, Opening, Wallet, WalletError, WalletState,
};
use support::{Dialect, ScratchDatabase, until};

on_every_database! {
    the_first_read_waits_for_a_commit_in_progress_and_sees_it,
    a_fenced_read_returns_the_same_values,
    a_fenced_read_of_a_missing_row_returns_none,
    a_superseded_lease_reads_and_commits_nothing,
    rows_read_under_a_lease_are_safe_from_an_earlier_lease,
    an_idle_action_still_needs_its_lease,
}

const LONG: Duration = Duration::from_secs(600);

fn lease(key: &str, token: i64) -> Fence {
    Fence { key: key.to_owned(), token, remaining: LONG }
}

/// The kind of an action's first read.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
enum How {
    Find,
    FindWhere,
    Page,
}

#[derive(Debug, Serialize, Deserialize)]
struct Looking {
    wallet: Id<Wallet>,
    how: How,
}

/// Reads a wallet and changes nothing.
struct Look;

impl Action for Look {
    const NAME: &'static str = "wallet.look";
    type Params = Looking;
    type Output = Option<Stored<Wallet>>;
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Looking,
    ) -> Result<Option<Stored<Wallet>>, WalletError> {
        let wallets = ctx.repository::<Wallet>();
        let mut found = match params.how {
            How::Find => return Ok(ctx.find(params.wallet).await?),
            How::FindWhere => wallets.find_where(Wallet::ID.eq(params.wallet)).await?,
            How::Page => {
                let page = PageRequest::first(1).filter(Wallet::ID.eq(params.wallet));
                wallets.page(page).await?.rows
            }
        };
        Ok(found.pop())
    }
}

/// Opens a wallet with a known id, without a read.
struct OpenAs;

impl Action for OpenAs {
    const NAME: &'static str = "wallet.open_as";
    type Params = Looking;
    type Output = ();
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Looking,
    ) -> Result<(), WalletError> {
        ctx.plan().add(Wallet::open(params.wallet, "alice", "EUR"));
        Ok(())
    }
}

#[derive(Debug)]
struct RolledBack;

/// The commit of the earlier lease has raised the fence and waits for a row.
async fn the_first_read_waits_for_a_commit_in_progress_and_sees_it(db: &TestDatabase) {
    for how in [How::Find, How::FindWhere, How::Page] {
        let (wallet, key) = (Id::<Wallet>::new(), format!("{how:?}"));
        let start = |token| {
            let (executor, fence) = (db.executor(), lease(&key, token));
            let params = Looking { wallet, how };
            tokio::spawn(async move {
                match token {
                    1 => executor.execute(&OpenAs, params).fenced_by(&fence).await.map(|()| true),
                    _ => {
                        let found = executor.execute(&Look, params).fenced_by(&fence).await;
                        found.map(|found| found.is_some())
                    }
                }
            })
        };
        let mut tasks = Vec::new();
        let transactions = db.databases.transactions();
        let held = transactions.in_transaction(async |tx| {
            let rows = db.databases.repository::<Wallet>().within(&tx);
            let same = Wallet {
                id: wallet,
                owner: "somebody else".to_owned(),
                currency: "EUR".to_owned(),
                balance: Decimal::ZERO,
                state: WalletState::Open,
            };
            rows.add(New::new(same, ())).await.unwrap();
            for token in [1, 2] {
                tasks.push(start(token));
                all_wait(db, &tasks).await;
            }
            Err::<(), _>(RolledBack)
        });
        assert!(held.await.is_err());
        let later = tasks.pop().unwrap().await.unwrap().unwrap();
        let earlier = tasks.pop().unwrap().await.unwrap();
        match (db.dialect(), earlier) {
            (_, Ok(_)) => assert!(later, "{how:?}: the committed row is seen"),
            // On SQLite both wait in one queue, and the later one may run between the earlier one's
            // raise of the fence and its commit.
            (Dialect::Sqlite, Err(ExecuteError::FenceLost { .. })) => assert!(!later, "{how:?}"),
            (_, Err(error)) => panic!("{how:?}: {error}"),
        }
    }
}

async fn execute(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut connection).await.unwrap();
}

/// With a single round trip the read would miss the commit that it waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_repeatable_read_the_first_read_still_sees_the_commit_on_postgres() {
    let url = ScratchDatabase::create(Dialect::Postgres).await.url;
    let name = url.rsplit('/').next().unwrap();
    let isolate =
        format!("ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'repeatable read'");
    execute(&url, &isolate).await;
    let db = TestDatabase::open(&url).await;
    the_first_read_waits_for_a_commit_in_progress_and_sees_it(&db).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_server_function_the_fence_is_still_raised_on_postgres() {
    let url = ScratchDatabase::create(Dialect::Postgres).await.url;
    let db = TestDatabase::open(&url).await;
    execute(&url, "DROP FUNCTION eventlog.read_under_fence").await;
    a_fenced_read_returns_the_same_values(&db).await;
    rows_read_under_a_lease_are_safe_from_an_earlier_lease(&db).await;
}

/// Waits until every call waits for a lock at the server. SQLite does not report that; there no
/// session can overtake the writer.
async fn all_wait<T>(db: &TestDatabase, calls: &[JoinHandle<T>]) {
    const POSTGRES: &str = "SELECT count(*) FROM pg_stat_activity \
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    const MYSQL: &str = "SELECT count(*) FROM information_schema.innodb_trx t \
        JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id \
        WHERE p.db = database() AND t.trx_state = 'LOCK WAIT'";
    until("every call waits for a lock at the server", async || {
        assert!(calls.iter().all(|call| !call.is_finished()), "a call did not wait for the lock");
        let waiting: i64 = match db.dialect() {
            Dialect::Sqlite => return true,
            Dialect::Postgres => {
                let mut raw = db.databases.postgres().await.unwrap();
                let row = sqlx::query(POSTGRES).fetch_one(raw.connection().unwrap()).await;
                raw.release().await.unwrap();
                row.unwrap().get(0)
            }
            Dialect::MySql | Dialect::MariaDb => {
                let mut raw = db.databases.mysql().await.unwrap();
                let row = sqlx::query(MYSQL).fetch_one(raw.connection().unwrap()).await;
                raw.release().await.unwrap();
                row.unwrap().get(0)
            }
        };
        if db.dialect() != Dialect::Postgres {
            // InnoDB refreshes its table every tenth of a second.
            tokio::time::sleep(Duration::from_millis(150)).await;
        }
        waiting == calls.len() as i64
    })
    .await;
}

async fn opened(db: &TestDatabase) -> Id<Wallet> {
    // The text contains everything that needs quoting.
    let opening =
        Opening { owner: r#"Zoë's \ "wallet" ␀ $1"#.to_owned(), currency: "EUR".to_owned() };
    db.executor().execute(&OpenWallet, opening).await.unwrap().id
}

async fn a_fenced_read_returns_the_same_values(db: &TestDatabase) {
    let wallet = opened(db).await;
    let amount = "0.10".parse().unwrap();
    db.executor().execute(&DepositMoney, Deposit { wallet, amount }).await.unwrap();
    let plain = db.databases.repository::<Wallet>().get(wallet).await.unwrap();
    for (token, how) in (1..).zip([How::Find, How::FindWhere, How::Find]) {
        let look = db.executor();
        let look = look.execute(&Look, Looking { wallet, how });
        assert_eq!(look.fenced_by(&lease("k", token)).await.unwrap(), Some(plain.clone()));
    }
}

async fn a_fenced_read_of_a_missing_row_returns_none(db: &TestDatabase) {
    let executor = db.executor();
    let look = executor.execute(&Look, Looking { wallet: Id::new(), how: How::Find });
    assert_eq!(look.fenced_by(&lease("k", 1)).await.unwrap(), None);
}

/// Deposits although its read was rejected.
struct Stubborn {
    was_refused: AtomicBool,
}

impl Action for Stubborn {
    const NAME: &'static str = "wallet.stubborn";
    type Params = Looking;
    type Output = ();
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Looking,
    ) -> Result<(), WalletError> {
        let read = ctx.get(params.wallet).await;
        self.was_refused.store(matches!(read, Err(ReadError::FenceLost { .. })), Ordering::SeqCst);
        let again = ctx.repository::<Wallet>().count().await;
        assert!(matches!(again, Err(ReadError::FenceLost { .. })), "{again:?}");
        let id = ctx.new_id();
        ctx.plan().add(Wallet::open(id, "nobody", "EUR"));
        Ok(())
    }
}

async fn a_superseded_lease_reads_and_commits_nothing(db: &TestDatabase) {
    let wallet = opened(db).await;
    let executor = db.executor();
    let look = executor.execute(&Look, Looking { wallet, how: How::Find });
    look.fenced_by(&lease("k", 2)).await.unwrap();
    let stubborn = Stubborn { was_refused: AtomicBool::new(false) };
    let late = executor.execute(&stubborn, Looking { wallet, how: How::Find });
    let late = late.fenced_by(&lease("k", 1)).await;
    assert!(matches!(&late, Err(ExecuteError::FenceLost { key, .. }) if key == "k"), "{late:?}");
    assert!(stubborn.was_refused.load(Ordering::SeqCst));
    // An action that returns the error of its read gets the same answer.
    let late = executor.execute(&DepositMoney, Deposit { wallet, amount: Decimal::ONE });
    let late = late.fenced_by(&lease("k", 1)).await;
    assert!(matches!(&late, Err(ExecuteError::FenceLost { key, .. }) if key == "k"), "{late:?}");
    assert_eq!(db.databases.repository::<Wallet>().count().await.unwrap(), 1);
}

/// Deposits; another action runs between its read and its change.
struct Overtaken<'a> {
    executor: &'a ActionExecutor,
    how: How,
}

impl Action for Overtaken<'_> {
    const NAME: &'static str = "wallet.overtaken";
    type Params = Deposit;
    type Output = ();
    type Error = WalletError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Deposit,
    ) -> Result<(), WalletError> {
        let wallet = ctx.get(params.wallet).await?;
        let (executor, how) = (self.executor.clone(), self.how);
        let looking = Looking { wallet: params.wallet, how };
        let other = tokio::spawn(async move {
            executor.execute(&Look, looking).fenced_by(&lease("k", 2)).await.map(drop).unwrap();
        });
        other.await.unwrap();
        let wallet = wallet.change(|wallet| wallet.deposit(params.amount))?;
        ctx.plan().update(wallet);
        Ok(())
    }
}

async fn rows_read_under_a_lease_are_safe_from_an_earlier_lease(db: &TestDatabase) {
    let wallet = opened(db).await;
    for how in [How::Find, How::FindWhere, How::Page] {
        db.forget_fences().await;
        let executor = db.executor();
        let action = Overtaken { executor: &executor, how };
        let late = executor.execute(&action, Deposit { wallet, amount: Decimal::ONE });
        let late = late.fenced_by(&lease("k", 1)).await;
        assert!(matches!(late, Err(ExecuteError::FenceLost { .. })), "{how:?}: {late:?}");
    }
    let wallet = db.databases.repository::<Wallet>().get(wallet).await.unwrap();
    assert_eq!((wallet.balance, wallet.version()), (Decimal::ZERO, 1));
}

/// Neither reads nor writes.
struct Idle;

impl Action for Idle {
    const NAME: &'static str = "wallet.idle";
    type Params = Deposit;
    type Output = ();
    type Error = WalletError;

    async fn perform(&self, _: &mut ActionContext<'_>, _: &Deposit) -> Result<(), WalletError> {
        Ok(())
    }
}

async fn an_idle_action_still_needs_its_lease(db: &TestDatabase) {
    let executor = db.executor();
    let idle = || executor.execute(&Idle, Deposit { wallet: Id::new(), amount: Decimal::ONE });
    idle().fenced_by(&lease("k", 2)).await.unwrap();
    let late = idle().fenced_by(&lease("k", 1)).await;
    assert!(matches!(late, Err(ExecuteError::FenceLost { .. })), "{late:?}");
}
