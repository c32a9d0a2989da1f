//! The database of the deposits, and one deposit under a lock.
//!
//! A deposit is a row that is added after the last row of its account. No version guards it: two
//! deposits that read the same last row both commit, unless the lock serializes them or the fence
//! rejects one.

use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use ekbatan::config::DataSourceConfig;
use ekbatan::db::RawConnection;
use ekbatan::domain::New;
use ekbatan::lock::{Lease, LockKey, LockProvider};
use ekbatan::prelude::*;
use ekbatan::repository::{Direction, PageRequest};
use ekbatan_testkit::PostgresServer;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use crate::history::{Answer, Commit, Grant};
use crate::holds::{ForceCall, Hold};

#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "deposits", name = "Deposit")]
pub struct Deposit {
    pub id: Id<Deposit>,
    pub account: String,
    pub sequence: i64,
    pub balance: i64,
    pub token: i64,
    pub state: DepositState,
}

#[derive(Debug, Clone, PartialEq, State)]
pub enum DepositState {
    Made,
}

const CREATE: &str = "\
    CREATE TABLE deposits ( \
        id uuid PRIMARY KEY, account text NOT NULL, sequence bigint NOT NULL, \
        balance bigint NOT NULL, token bigint NOT NULL, state varchar(24) NOT NULL, \
        version bigint NOT NULL); \
    CREATE INDEX deposits_of_account ON deposits (account, sequence)";

/// Runs between the read of a deposit and its commit.
pub type Between = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

pub struct AddDeposit {
    between: Option<Between>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Params {
    account: String,
    token: i64,
}

impl Action for AddDeposit {
    const NAME: &'static str = "ledger.add_deposit";
    type Params = Params;
    type Output = ();
    type Error = ReadError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, params: &Params) -> Result<(), ReadError> {
        let of_account = PageRequest::first(1)
            .filter(Deposit::ACCOUNT.eq(&*params.account))
            .order_by(Deposit::SEQUENCE, Direction::Descending);
        let last = ctx.repository::<Deposit>().page(of_account).await?;
        if let Some(between) = &self.between {
            between().await;
        }
        let (sequence, balance) =
            last.rows.first().map_or((0, 0), |last| (last.sequence, last.balance));
        let deposit = Deposit {
            id: ctx.new_id(),
            account: params.account.clone(),
            sequence: sequence + 1,
            balance: balance + 1,
            token: params.token,
            state: DepositState::Made,
        };
        ctx.plan().add(New::new(deposit, ()));
        Ok(())
    }
}

#[derive(Clone)]
pub struct Ledger {
    pub url: String,
    databases: Databases,
    executor: ActionExecutor,
}

impl Ledger {
    /// An empty ledger. No test harms its server.
    pub async fn create() -> Self {
        static SERVER: OnceCell<PostgresServer> = OnceCell::const_new();
        let server = SERVER.get_or_init(async || {
            // The database itself records the order of the commits.
            let server = PostgresServer::builder().setting("track_commit_timestamp", "on");
            server.start().await.unwrap()
        });
        let url = server.await.create_database().await.unwrap();
        let databases = Databases::connect(&DataSourceConfig::new(&url).into()).await.unwrap();
        let migrations = Migrations::none().script(1, "create_deposits", CREATE);
        databases.migrate(&migrations).await.unwrap();
        Self::open(&url).await
    }

    pub async fn open(url: &str) -> Self {
        let config = DataSourceConfig::new(url).maximum_pool_size(6);
        let databases = Databases::connect(&config.into()).await.unwrap();
        let builder = ActionExecutor::builder(&databases, "tests").model::<Deposit>();
        let executor = builder.build().await.unwrap();
        Self { url: url.to_owned(), databases, executor }
    }

    /// The deposits, in the order of their commits.
    pub async fn commits(&self) -> Vec<Commit> {
        let mut raw: RawConnection<sqlx::PgConnection> = self.databases.postgres().await.unwrap();
        let rows: Vec<(String, i64, i64, i64)> = sqlx::query_as(
            "SELECT account, token, sequence, balance FROM deposits \
             ORDER BY pg_xact_commit_timestamp(xmin), sequence",
        )
        .fetch_all(raw.connection().unwrap())
        .await
        .unwrap();
        raw.release().await.unwrap();
        rows.into_iter()
            .map(|(key, token, sequence, balance)| {
                assert_eq!(balance, sequence, "every deposit is one");
                Commit { key, token, sequence }
            })
            .collect()
    }
}

/// What a depositor adds to the history.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Observation {
    Granted(Grant),
    Answered {
        key: String,
        token: i64,
        requested: u64,
        answer: Answer,
    },
    Held(Hold),
    /// Reported before the call, and again with its answer.
    Forced(ForceCall),
    Failed(String),
}

/// Makes deposits, as one process does.
#[derive(Clone)]
pub struct Depositor {
    pub ledger: Ledger,
    pub locks: LockProvider,
    pub observe: Arc<dyn Fn(Observation) + Send + Sync>,
}

impl Depositor {
    /// Makes one deposit under the lock of its account; `None` if the lock could not be acquired.
    pub async fn deposit(
        &self,
        account: &str,
        options: LockOptions,
        fenced: bool,
        between: Option<Between>,
    ) -> Option<Answer> {
        let (key, requested) = (LockKey::named(account), now());
        let action = AddDeposit { between };
        let mut answer = None;
        let _ = self
            .locks
            .with_lock(&key, options, async |lease: Lease| {
                let (key, token) = (account.to_owned(), lease.token());
                let (process, received) = (std::process::id(), now());
                (self.observe)(Observation::Granted(Grant {
                    key: key.clone(),
                    token,
                    process,
                    requested,
                    received,
                }));
                let call =
                    self.ledger.executor.execute(&action, Params { account: key.clone(), token });
                let done = if fenced { call.fenced_by(&lease).await } else { call.await };
                let received = match &done {
                    Ok(()) => Answer::Committed,
                    Err(ExecuteError::CommitUnknown { .. }) => Answer::Unknown,
                    Err(_) => Answer::NotCommitted,
                };
                answer = Some(received);
                (self.observe)(Observation::Answered { key, token, requested, answer: received });
                done
            })
            .await;
        answer
    }
}

/// The variable with the seconds by which the clock of this process is wrong.
pub const SKEW_SECONDS: &str = "EKBATAN_TEST_CLOCK_SKEW";

/// By how many microseconds the clock of this process is wrong.
static SKEW: LazyLock<i64> = LazyLock::new(|| {
    let seconds: Option<i64> = std::env::var(SKEW_SECONDS).ok().map(|it| it.parse().unwrap());
    seconds.unwrap_or_default() * 1_000_000
});

/// Microseconds since 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let here = i64::try_from(since.as_micros()).unwrap();
    u64::try_from(here - *SKEW).unwrap()
}
