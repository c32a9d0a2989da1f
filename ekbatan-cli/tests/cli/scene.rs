//! A database with wallets, a ledger that fails until it is opened, and the program.

use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::db::Dialect as Sql;
use ekbatan::events::{
    Delivered, DeliveryOperations, EventHandler, HandlerContext, HandlerOptions, Node,
    RemoteCallError, RemoteFailure,
};
use ekbatan::jobs::{Job, JobNode, RunContext, Schedule};
use ekbatan::prelude::*;
use serde_json::Value;
use support::wallet::{OpenWallet, Opening, Wallet, WalletEvent, migrations};
use support::{Dialect, ScratchDatabase, until};

/// Handles events once it is open.
struct Ledger(Arc<AtomicBool>);

impl EventHandler for Ledger {
    const NAME: &'static str = "ledger.post";
    type Event = WalletEvent;
    type Error = &'static str;

    async fn handle(
        &self,
        _: &mut HandlerContext<'_>,
        _: &Delivered<WalletEvent>,
    ) -> Result<(), &'static str> {
        if self.0.load(Ordering::SeqCst) { Ok(()) } else { Err("the ledger is closed") }
    }
}

/// Charges at a bank whose line is cut.
struct Charge;

impl EventHandler for Charge {
    const NAME: &'static str = "bank.charge";
    type Event = WalletEvent;
    type Error = RemoteCallError;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        _: &Delivered<WalletEvent>,
    ) -> Result<(), RemoteCallError> {
        let request =
            |_| async { Err::<i64, _>(RemoteFailure::in_doubt("the line to the bank is cut")) };
        let receipt: i64 = ctx.remote_call("charge", request).await?;
        assert_eq!(receipt, -17, "the operator's");
        Ok(())
    }
}

/// Has a wallet opened later.
struct OpenLater;

impl Action for OpenLater {
    const NAME: &'static str = "wallet.open_later";
    type Params = Opening;
    type Output = ();
    type Error = std::convert::Infallible;

    async fn perform(&self, ctx: &mut ActionContext<'_>, of: &Opening) -> Result<(), Self::Error> {
        let opening = Opening { owner: of.owner.clone(), currency: of.currency.clone() };
        ctx.plan().enqueue(&OpenWallet, opening);
        Ok(())
    }
}

/// A job that is due on leap days.
struct CloseDays;

impl Job for CloseDays {
    const NAME: &'static str = "bank.close_days";
    type Error = &'static str;

    async fn run(&self, _: &mut RunContext<'_>) -> Result<(), &'static str> {
        Ok(())
    }
}

pub struct Scene {
    scratch: ScratchDatabase,
    databases: Databases,
    executor: ActionExecutor,
    program: Program,
    is_open: Arc<AtomicBool>,
}

/// The program with its configuration.
pub struct Program(tempfile::TempDir);

/// What the program printed, and its status.
pub struct Ran(Output);

impl Ran {
    /// What it printed, if it did what was asked.
    #[track_caller]
    pub fn done(self) -> String {
        let said = String::from_utf8(self.0.stderr).unwrap();
        assert_eq!((self.0.status.code(), &*said), (Some(0), ""));
        String::from_utf8(self.0.stdout).unwrap()
    }

    /// Its complaint, if it ended with this status.
    #[track_caller]
    pub fn failed(self, status: i32) -> String {
        let said = String::from_utf8(self.0.stderr).unwrap();
        let printed = String::from_utf8(self.0.stdout).unwrap();
        assert_eq!((self.0.status.code(), &*printed), (Some(status), ""), "{said}");
        said
    }
}

/// Runs the program in a folder.
pub async fn run(arguments: &[&str], folder: &Path) -> Ran {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ekbatan"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    let ran = tokio::task::spawn_blocking(move || command.output()).await;
    Ran(ran.unwrap().unwrap())
}

impl Program {
    fn new(url: &str, eventlog: Option<&str>) -> Self {
        let eventlog = eventlog.map(|name| format!(", eventlog: {name}")).unwrap_or_default();
        Self::of(&format!("ekbatan: {{configs: {{primary-config: {{url: '{url}'{eventlog}}}}}}}"))
    }

    /// The program with this configuration.
    pub fn of(yaml: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("config")).unwrap();
        // Found without --config.
        std::fs::write(folder.path().join("config/ekbatan.yml"), yaml).unwrap();
        Self(folder)
    }

    pub async fn run(&self, arguments: &[&str]) -> Ran {
        run(arguments, self.0.path()).await
    }

    pub async fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.run(&[arguments, &["--json"]].concat()).await.done();
        serde_json::from_str(&printed).unwrap()
    }
}

impl std::ops::Deref for Scene {
    type Target = Program;

    fn deref(&self) -> &Program {
        &self.program
    }
}

impl Scene {
    pub async fn node_with_job(&self) -> JobNode {
        let leap_days = Schedule::cron("0 17 29 FEB *", "UTC").unwrap();
        let node = JobNode::builder(&self.executor).poll(Duration::from_millis(20));
        node.job(leap_days, CloseDays).start().await.unwrap()
    }

    pub async fn start(dialect: Dialect) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let databases = Databases::connect(&scratch.config().into()).await.unwrap();
        databases.migrate(&migrations()).await.unwrap();
        let executor = executor(&databases).await;
        let program = Program::new(&scratch.url, scene_log(&scratch).as_deref());
        Self { scratch, databases, executor, program, is_open: Arc::default() }
    }

    async fn node(&self, options: HandlerOptions) -> Node {
        let builder = Node::builder(&self.executor);
        let builder = builder.poll(Duration::from_millis(1), Duration::from_millis(50));
        let options = options.max_attempts(1);
        builder.handler_with(Ledger(self.is_open.clone()), options).start().await.unwrap()
    }

    pub async fn node_that_parks(&self) -> Node {
        self.node(HandlerOptions::default()).await
    }

    pub async fn node_that_charges(&self) -> Node {
        let builder = Node::builder(&self.executor);
        let builder = builder.poll(Duration::from_millis(1), Duration::from_millis(50));
        builder.handler(Charge).start().await.unwrap()
    }

    pub async fn node_with_dead_letters(&self) -> Node {
        self.node(HandlerOptions::default().dead_letters()).await
    }

    pub fn open_the_ledger(&self) {
        self.is_open.store(true, Ordering::SeqCst);
    }

    fn operations(&self) -> DeliveryOperations {
        DeliveryOperations::new(&self.databases, &self.databases.shards().next().unwrap())
    }

    pub async fn open_wallet(&self) -> Id<Wallet> {
        open_wallet(&self.executor).await
    }

    /// Opens a wallet as a process does that has no node.
    pub async fn open_wallet_without_node(&self) {
        let databases = Databases::connect(&self.scratch.config().into()).await.unwrap();
        open_wallet(&executor(&databases).await).await;
    }

    /// Changes the database with plain SQL.
    pub async fn execute(&self, sql: &str) {
        self.scratch.execute(sql).await;
    }

    /// Enqueues a call. Returns the name of its action.
    pub async fn open_wallet_later(&self) -> &'static str {
        let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
        self.executor.execute(&OpenLater, opening).await.unwrap();
        OpenWallet::NAME
    }

    /// Registers the action of enqueued calls, and runs none.
    pub async fn register_calls(&self) {
        let node = Node::builder(&self.executor).action(OpenWallet).handles(false);
        node.start().await.unwrap().drain(Duration::from_secs(60)).await;
    }

    pub async fn wallet_with_parked_event(&self) -> Id<Wallet> {
        let wallet = self.open_wallet().await;
        self.until_parked().await;
        wallet
    }

    pub async fn until_parked(&self) {
        until("the event is parked", async || {
            self.operations().parked(1).await.unwrap().len() == 1
        })
        .await;
    }

    pub async fn until_dead_letters(&self, count: usize) {
        until("the events are dead letters", async || {
            self.operations().dead_letters(100).await.unwrap().len() == count
        })
        .await;
    }

    /// Waits until so many letters are settled and nothing is left to be handled.
    pub async fn until_handled(&self, replayed: usize) {
        let letters = self.scratch.eventlog("dead_letters");
        let from = format!("FROM {letters} WHERE state = 'REPLAYED'");
        assert_eq!(self.scratch.select(&["id"], &from).await.len(), replayed);
        until("every event is handled", async || {
            self.operations().pending("ledger.post").await.unwrap() == 0
        })
        .await;
        assert!(self.operations().dead_letters(100).await.unwrap().is_empty());
    }

    pub fn url(&self) -> &str {
        &self.scratch.url
    }

    /// On MySQL and MariaDB, the database of the framework's tables.
    pub fn eventlog(&self) -> Option<String> {
        scene_log(&self.scratch)
    }

    /// The program with a login that may only read the tables of the framework.
    pub async fn reader(&self) -> Program {
        let database = self.scratch.url.rsplit('/').next().unwrap().to_owned();
        let name = format!("reader_{}", &Uuid::new_v4().simple().to_string()[..12]);
        let log = scene_log(&self.scratch);
        let grants = match self.databases.capabilities().dialect {
            Sql::Postgres => format!(
                "CREATE ROLE {name} LOGIN PASSWORD 'reading'; \
                 GRANT USAGE ON SCHEMA eventlog TO {name}; \
                 GRANT SELECT ON ALL TABLES IN SCHEMA eventlog TO {name}"
            ),
            _ => {
                let log = log.clone().unwrap_or_default();
                format!(
                    "CREATE USER {name}@'%' IDENTIFIED BY 'reading'; \
                     GRANT SELECT ON {log}.* TO {name}@'%'; GRANT SELECT ON {database}.* TO {name}@'%'"
                )
            }
        };
        for statement in grants.split("; ") {
            self.scratch.execute(statement).await;
        }
        let (scheme, rest) = self.scratch.url.split_once("://").unwrap();
        let host = rest.split_once('@').map_or(rest, |(_, host)| host);
        Program::new(&format!("{scheme}://{name}:reading@{host}"), log.as_deref())
    }
}

async fn executor(databases: &Databases) -> ActionExecutor {
    let builder = ActionExecutor::builder(databases, "com.example.cli");
    builder.model::<Wallet>().build().await.unwrap()
}

async fn open_wallet(executor: &ActionExecutor) -> Id<Wallet> {
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    executor.execute(&OpenWallet, opening).await.unwrap().id
}

/// On MySQL and MariaDB, the database of the framework's tables.
fn scene_log(scratch: &ScratchDatabase) -> Option<String> {
    scratch.dialect.is_mysql().then(|| scratch.config().eventlog)
}
