//! A process that is killed between the request of a remote call and its outcome. The test binary
//! starts itself as that process.

use std::time::Duration;

use ekbatan::events::RemoteCallState;
use ekbatan::prelude::*;
use serde_json::json;
use support::worker_process::{WorkerProcess, order, report};
use support::{Dialect, ScratchDatabase};

use crate::remote_calls::{Bank, charging, charging_idempotently, quick, stopping};
use crate::scene::{Ledger, Scene, executor, node};

/// The variable that holds the URL of the database, in the process that is killed.
const ORDER: &str = "EKBATAN_TEST_KILLED_REMOTE_CALL";

/// The shortest lease.
const LEASE: Duration = Duration::from_secs(1);

support::on_every_database! {
    #[tokio::test(flavor = "multi_thread")]
    |dialect| dialect;
    a_call_of_a_process_that_is_killed_is_never_made_again,
    an_idempotent_call_of_a_process_that_is_killed_is_made_again_with_its_key,
}

/// A database in which a process was killed while its request for a new wallet was under way, the
/// wallet, and the key of the request.
async fn killed(dialect: Dialect, test: &str) -> (Scene, Id<support::wallet::Wallet>, Uuid) {
    let scene = Scene::start(dialect).await;
    let wallet = scene.open_wallet().await;
    let case = match dialect {
        Dialect::Sqlite => "sqlite",
        Dialect::Postgres => "postgres",
        Dialect::MySql => "mysql",
        Dialect::MariaDb => "mariadb",
    };
    let test = format!("remote_killed::{case}::{test}");
    let mut process = WorkerProcess::<Uuid>::start(&test, ORDER, &scene.scratch.url, Some);
    let key = process.receive().await;
    process.kill();
    let call = scene.remote_call().await;
    assert_eq!((call.id.uuid(), call.state), (key, RemoteCallState::Sent));
    (scene, wallet, key)
}

/// The process that is killed.
async fn run_until_killed(url: &str) {
    let databases = Databases::connect(&ScratchDatabase::config_of(url).into()).await.unwrap();
    let executor = executor(&databases).await;
    let ledger = Ledger::new(|ctx, _| stopping(ctx, |key| report(&key)));
    let _node = node(&executor).lease(LEASE).handler(ledger).start().await.unwrap();
    std::future::pending::<()>().await;
}

async fn a_call_of_a_process_that_is_killed_is_never_made_again(dialect: Dialect) {
    if let Some(url) = order::<String>(ORDER) {
        return run_until_killed(&url).await;
    }
    let test = "a_call_of_a_process_that_is_killed_is_never_made_again";
    let (scene, wallet, key) = killed(dialect, test).await;
    let bank = Bank::default();
    let builder = scene.node().lease(LEASE).handler_with(charging(&bank), quick());
    let _node = builder.start().await.unwrap();
    let error = scene.until_parked().await;
    assert!(error.contains("`charge` of `ledger.post`"), "{error}");
    assert!(error.contains(&key.to_string()), "{error}");
    let operations = scene.operations();
    let listed = operations.unsettled_remote_calls(10).await.unwrap();
    assert_eq!((listed.len(), listed[0].state), (1, RemoteCallState::InDoubt));
    assert!(scene.posted(wallet).await.is_empty());

    let outcome = json!({ "number": 9 });
    operations.remote_call_happened(key, &outcome, "alice", "the bank says so").await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [9]);
    assert!(bank.requests().is_empty());
}

async fn an_idempotent_call_of_a_process_that_is_killed_is_made_again_with_its_key(
    dialect: Dialect,
) {
    if let Some(url) = order::<String>(ORDER) {
        return run_until_killed(&url).await;
    }
    let test = "an_idempotent_call_of_a_process_that_is_killed_is_made_again_with_its_key";
    let (scene, wallet, key) = killed(dialect, test).await;
    let bank = Bank::default();
    let builder = scene.node().lease(LEASE).handler_with(charging_idempotently(&bank), quick());
    let _node = builder.start().await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [7]);
    assert_eq!(bank.requests(), [key]);
    let call = scene.remote_call().await;
    assert_eq!((call.state, call.requests), (RemoteCallState::Done, 2));
}
