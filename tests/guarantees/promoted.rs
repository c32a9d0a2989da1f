//! A primary that dies after a commit and before its answer. Its address then leads to a standby that has
//! received the commit and does not show it yet: the standby is not believed that nothing was written.

use std::time::Duration;

use ekbatan::action::{Outcome, RetryPolicy};
use ekbatan::db::DbErrorKind;
use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use support::wallet::{Deposit, DepositMoney};
use support::{PlainConnection, ScratchDatabase, until};

use crate::bounded;
use crate::ledger::{Ledger, proxied};
use crate::other_sessions::{Observer, lock_wallet};

/// The answer of a query that returns one text.
async fn ask(connection: &mut PlainConnection, expression: &str) -> String {
    let mut rows = connection.select(&[expression], "").await;
    rows.remove(0).remove(0).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_not_asked_what_committed() {
    // The standby has this setting, too: it looks for its primary so often, and may be promoted in between.
    let often = PostgresServer::builder().setting("wal_retrieve_retry_interval", "100ms");
    let primary = often.start().await.unwrap();
    let url = primary.create_database().await.unwrap();
    let (through, proxy) = proxied(&url).await;
    let config = ScratchDatabase::config_of(&through).lanes(1);
    let ledger = Ledger::with_config(config.settle_timeout(Duration::from_millis(500))).await;
    let wallet = ledger.open_wallets(1).await[0];
    // The copy has everything that was committed until now.
    let standby = primary.start_replica().await.unwrap();
    standby.pause_replay().await.unwrap();
    let mut on_primary = PlainConnection::connect(&url).await;
    let mut on_standby = PlainConnection::connect(&standby.url("postgres")).await;

    let direct = ScratchDatabase::at(&url);
    let mut observer = Observer::connect(&url).await;
    let mut holder = PlainConnection::connect(&url).await;
    holder.execute("BEGIN").await;
    lock_wallet(&mut holder, wallet).await;
    let deposit = Deposit { wallet, amount: Decimal::ONE };
    let call = ledger.executor.execute(&DepositMoney, deposit).retry(RetryPolicy::none());
    let id = call.action_id();
    let failing_over = async {
        bounded("the commit waits", observer.wait_for_blocked()).await;
        proxy.stall();
        let written = direct.count_events().await;
        holder.execute("COMMIT").await;
        until("the primary commits", async || direct.count_events().await > written).await;
        let end = ask(&mut on_primary, "pg_current_wal_flush_lsn()").await;
        let received = format!("pg_last_wal_receive_lsn() >= '{end}'::pg_lsn");
        until("the standby receives the commit", async || {
            ask(&mut on_standby, &received).await == "true"
        })
        .await;
        primary.kill().await.unwrap();
        proxy.lead_to(("127.0.0.1", standby.port())).await.unwrap();
        proxy.cut();
        proxy.resume();
        proxy.restore();
    };
    let (deposited, ()) = tokio::join!(async { call.await }, failing_over);
    match deposited.unwrap_err() {
        ExecuteError::CommitUnknown { action, .. } => assert_eq!(action, id),
        other => panic!("{other:?}"),
    }
    // Another process cannot tell the outcome either.
    let databases = Databases::connect(&ScratchDatabase::config_of(&through).into()).await.unwrap();
    let other = ActionExecutor::builder(&databases, "tests").build().await.unwrap();
    let error = other.outcome(id).await.unwrap_err();
    assert_eq!(error.kind(), DbErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("may be a standby"), "{error}");

    standby.resume_replay().await.unwrap();
    assert_eq!(ask(&mut on_standby, "pg_promote()").await, "true");
    for executor in [&ledger.executor, &other] {
        let outcome = bounded("the outcome", executor.outcome(id)).await.unwrap();
        assert_eq!(outcome, Outcome::Committed);
    }
    ledger.assert_sound(1).await;
}
