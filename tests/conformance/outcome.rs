//! The outcome of an execution, asked later by its id.

use ekbatan::action::{ErrorKind, Outcome};
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use support::TestDatabase;
use support::things::{THINGS, quiet, thing};

use crate::actions::{Nothing, Refused, stage};

on_every_database! {
    a_committed_outcome_is_known_to_every_process,
    a_failed_action_is_not_committed,
    an_action_that_never_ran_is_not_committed,
    an_action_id_that_the_caller_sets_is_stored,
}

async fn a_committed_outcome_is_known_to_every_process(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = stage(|ctx| Ok(ctx.plan().add(quiet(thing("a")))));
    let call = executor.execute(&action, Nothing {});
    let id = call.action_id();
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::NotCommitted, "the call has not run");
    call.await.unwrap();
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::Committed);
    let elsewhere = THINGS.executor_on(&db.open_again().await).await;
    assert_eq!(elsewhere.outcome(id).await.unwrap(), Outcome::Committed);
}

async fn a_failed_action_is_not_committed(db: &TestDatabase) {
    db.things().add(quiet(thing("taken"))).await.unwrap();
    let executor = db.executor().await;
    for refuses in [true, false] {
        let action = stage(move |ctx| {
            ctx.plan().add(quiet(thing("taken")));
            if refuses { Err(Refused) } else { Ok(()) }
        });
        let call = executor.execute(&action, Nothing {});
        let id = call.action_id();
        let expected = if refuses { ErrorKind::Domain } else { ErrorKind::Unique };
        assert_eq!(call.await.unwrap_err().kind(), expected);
        assert_eq!(executor.outcome(id).await.unwrap(), Outcome::NotCommitted);
    }
}

async fn an_action_that_never_ran_is_not_committed(db: &TestDatabase) {
    let executor = db.executor().await;
    let action = stage(|ctx| Ok(ctx.plan().add(quiet(thing("a")))));
    let id = executor.execute(&action, Nothing {}).action_id();
    assert_eq!(action.runs(), 0);
    assert_eq!(executor.outcome(id).await.unwrap(), Outcome::NotCommitted);
    assert_eq!(executor.outcome(ActionId(Uuid::nil())).await.unwrap(), Outcome::NotCommitted);
}

async fn an_action_id_that_the_caller_sets_is_stored(db: &TestDatabase) {
    let executor = db.executor().await;
    let id = Uuid::now_v7();
    let action = stage(|ctx| {
        assert_eq!(ctx.action_id(), ActionId(id));
        Ok(ctx.plan().add(quiet(thing("a"))))
    });
    executor.execute(&action, Nothing {}).with_action_id(id).await.unwrap();
    assert_eq!(executor.outcome(ActionId(id)).await.unwrap(), Outcome::Committed);
    let stored = db.select(&["action_id"], &format!("FROM {}", db.eventlog("events"))).await;
    assert_eq!(stored, [[Some(id.to_string())]]);
}
