//! The mark: an event and its effect are in the database together, once.

use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::events::HandlerOptions;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use support::until;
use tokio::sync::Notify;

use crate::scene::{Entry, Failure, Ledger, PostEntry, Posting, Scene, post};

on_every_database! {
    a_handler_that_fails_after_its_action_has_committed_is_done,
    a_second_action_is_refused_and_commits_nothing,
    a_step_commits_once_however_often_the_handler_runs,
    an_event_that_was_taken_over_has_no_effect_of_its_former_node,
    an_action_that_changes_nothing_marks_too,
}

fn quick() -> HandlerOptions {
    HandlerOptions::default().retry(Duration::from_millis(1), Duration::from_millis(5))
}

async fn a_handler_that_fails_after_its_action_has_committed_is_done(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| {
        async move {
            post(ctx, event).await?;
            Err("after the commit".into())
        }
        .boxed()
    });
    let seen = ledger.seen();
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.deposit(wallet, 2).await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 2, 3]);
    assert_eq!(seen.lock().unwrap().len(), 3);
}

async fn a_second_action_is_refused_and_commits_nothing(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| {
        async move {
            post(ctx, event).await?;
            let second = ctx.execute(&PostEntry, Posting::of(event)).await;
            assert_eq!(second.unwrap_err().kind(), ErrorKind::DeliveryLost);
            Ok(())
        }
        .boxed()
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1]);
}

async fn a_step_commits_once_however_often_the_handler_runs(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| {
        async move {
            ctx.step("first", &PostEntry, Posting::of(event)).await?;
            if event.attempt < 3 {
                return Err::<(), Failure>("after the step".into());
            }
            ctx.step("second", &PostEntry, Posting::of(event)).await?;
            post(ctx, event).await
        }
        .boxed()
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [1, 1, 1], "two steps and the last action");
}

async fn an_event_that_was_taken_over_has_no_effect_of_its_former_node(scene: &Scene) {
    // The first run stands still after its read, as a process does that is stopped.
    static STOPPED: [Notify; 4] = [const { Notify::const_new() }; 4];
    static GO_ON: [Notify; 4] = [const { Notify::const_new() }; 4];
    let at = scene.scratch.dialect as usize;
    let (answers, mut answered) = tokio::sync::mpsc::unbounded_channel();
    let frozen = Ledger::new(move |ctx, event| {
        let answers = answers.clone();
        async move {
            STOPPED[at].notify_one();
            GO_ON[at].notified().await;
            let answer = ctx.execute(&PostEntry, Posting::of(event)).await;
            answers.send(answer.as_ref().err().map(|error| error.kind())).unwrap();
            Ok(answer?)
        }
        .boxed()
    });
    let wallet = scene.open_wallet().await;
    let frozen = scene.node().handler(frozen).start().await.unwrap();
    STOPPED[at].notified().await;
    // Or it would claim the event again, once it has noticed.
    frozen.pause("ledger.post");

    // Another node finds it dead, as it does after the lease.
    scene.scratch.execute(&format!("DELETE FROM {}", scene.scratch.eventlog("nodes"))).await;
    let other = scene.open_again().await;
    let _other = crate::scene::node(&other).handler(Ledger::posting()).start().await.unwrap();
    scene.until_posted(1).await;
    GO_ON[at].notify_one();
    assert_eq!(answered.recv().await.unwrap(), Some(ErrorKind::DeliveryLost));
    assert_eq!(scene.posted(wallet).await, [1], "the effect of the former node is absent");
    scene.until_handled("ledger.post").await;
}

/// Changes nothing.
struct Look;

impl Action for Look {
    const NAME: &'static str = "ledger.look";
    type Params = Posting;
    type Output = ();
    type Error = ReadError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Posting) -> Result<(), ReadError> {
        ctx.repository::<Entry>().count().await.map(drop)
    }
}

async fn an_action_that_changes_nothing_marks_too(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| {
        async move { Ok(ctx.execute(&Look, Posting::of(event)).await?) }.boxed()
    });
    let node = scene.node().handler(ledger).start().await.unwrap();
    scene.open_wallet().await;
    until("it is handled", async || node.handlers()[0].handled == 1).await;
    assert_eq!(scene.operations().pending("ledger.post").await.unwrap(), 0);
}
