//! Times near the greatest one that a `Duration` can hold. Clocks and drivers overflow on them.

use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::db::TransactionOptions;
use ekbatan::prelude::*;
use support::TestDatabase;
use support::things::{THINGS, Thing, quiet, thing};

use crate::actions::{Nothing, Refused, stage};

on_every_database! {
    on_sqlite_only:
    a_configured_time_is_refused_and_not_passed_to_a_driver,
    a_transaction_may_have_any_time,
    a_retry_may_wait_for_any_time,
}

on_every_database! {
    only postgres and mysql and mariadb: a_read_from_a_replica_may_wait_for_any_time
}

async fn a_configured_time_is_refused_and_not_passed_to_a_driver(db: &TestDatabase) {
    let config = db.config().connection_timeout(Duration::MAX).statement_timeout(Duration::MAX);
    let Err(error) = Databases::connect(&config.into()).await else { panic!("it is accepted") };
    for key in ["connection-timeout", "statement-timeout"] {
        assert!(error.to_string().contains(key), "{error}");
    }
    assert!(error.to_string().contains("at most 24d"), "{error}");
}

async fn a_transaction_may_have_any_time(db: &TestDatabase) {
    let options = TransactionOptions::default().timeout(Duration::MAX);
    let work = async |_| Ok::<_, Refused>(());
    db.databases.transactions().in_transaction_with(options, work).await.unwrap();
}

/// The row is stale in each attempt; the deadline ends the wait for the second one.
async fn a_retry_may_wait_for_any_time(db: &TestDatabase) {
    let old = db.things().add(quiet(thing("a"))).await.unwrap();
    db.things().update(old.clone().apply(|thing| thing.small = 1)).await.unwrap();
    let action = stage(move |ctx| {
        ctx.plan().update(old.clone().apply(|thing| thing.small = 2));
        Ok(())
    });
    let waits = Budget::new(1).base(Duration::MAX).cap(Duration::MAX);
    let executor = db.executor().await;
    let call = executor.execute(&action, Nothing {}).contention(Contention::Optimistic);
    let call = call.deadline(Duration::from_millis(500));
    call.retry(RetryPolicy::none().with(ErrorKind::Stale, waits)).await.unwrap_err();
    assert!(action.runs() <= 1);
}

/// The replica is the primary itself.
async fn a_read_from_a_replica_may_wait_for_any_time(db: &TestDatabase) {
    let config = EkbatanConfig::from(db.config()).replica(db.config());
    let databases = Databases::connect(&config).await.unwrap();
    let executor = THINGS.executor_on(&databases).await;
    let action = stage(|ctx| {
        ctx.plan().add(quiet(thing("a")));
        Ok(())
    });
    let (_, committed) = executor.execute(&action, Nothing {}).with_commit().await.unwrap();
    // A server without a binary log has no positions.
    if let Some(token) = committed.unwrap().token {
        let things = databases.repository::<Thing>().on_replica_after(&token, Duration::MAX);
        assert_eq!(things.count().await.unwrap(), 1);
    }
}
