//! The mark: an event and its effect are in the database together, once.

use std::time::Duration;

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::events::HandlerOptions;
use ekbatan::prelude::*;
use ekbatan_testkit::Proxy;
use futures_util::FutureExt;
use support::wallet::{Deposit, DepositMoney};
use support::{Dialect, until};
use tokio::sync::{Notify, Semaphore};

use crate::birth::node_that_does_not_look;
use crate::scene::{
    Entry, Failure, Ledger, PostEntry, Posting, Scene, executor, node, open_wallet, post,
};

on_every_database! {
    a_handler_that_fails_after_its_action_has_committed_is_done,
    what_follows_the_last_action_is_refused_and_commits_nothing,
    a_step_commits_once_however_often_the_handler_runs,
    an_event_that_was_taken_over_has_no_effect_of_its_former_node,
    an_action_that_changes_nothing_marks_too,
}

mod on_servers {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        a_commit_of_a_handler_without_an_answer_is_settled_as_one,
        a_lost_delivery_refuses_itself_and_none_that_commits_with_it,
    }
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

async fn what_follows_the_last_action_is_refused_and_commits_nothing(scene: &Scene) {
    let (answers, mut answered) = tokio::sync::mpsc::unbounded_channel();
    let ledger = Ledger::new(move |ctx, event| {
        let answers = answers.clone();
        async move {
            post(ctx, event).await?;
            let second = ctx.finish(&PostEntry, Posting::of(event)).await;
            answers.send(second.map_err(|error| error.to_string()))?;
            let step = ctx.step("late", &PostEntry, Posting::of(event)).await;
            answers.send(step.map_err(|error| error.to_string()))?;
            Ok(())
        }
        .boxed()
    });
    let node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    for _ in 0..2 {
        let why = answered.recv().await.unwrap().expect_err("it follows the last action");
        assert!(why.starts_with("`ledger.post` has called `finish` already"), "{why}");
    }
    until("it is handled", async || node.handlers()[0].handled == 1).await;
    assert_eq!((scene.posted(wallet).await, node.handlers()[0].failed), (vec![1], 0));
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
            let answer = ctx.finish(&PostEntry, Posting::of(event)).await;
            answers.send(answer.as_ref().err().map(|error| error.kind())).unwrap();
            Ok(answer?)
        }
        .boxed()
    });
    let wallet = scene.open_wallet().await;
    let frozen = scene.node().handler(frozen).start().await.unwrap();
    STOPPED[at].notified().await;
    // Or it would claim the event again, once it has noticed.
    assert!(frozen.pause("ledger.post"));

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
        async move { Ok(ctx.finish(&Look, Posting::of(event)).await?) }.boxed()
    });
    let node = scene.node().handler(ledger).start().await.unwrap();
    scene.open_wallet().await;
    until("it is handled", async || node.handlers()[0].handled == 1).await;
    assert_eq!(scene.operations().pending("ledger.post").await.unwrap(), 0);
}

/// The server commits the effect and the mark, and the line breaks before it has said so.
async fn a_commit_of_a_handler_without_an_answer_is_settled_as_one(scene: &Scene) {
    let server = scene.scratch.url.rsplit('@').next().unwrap().split('/').next().unwrap();
    let proxy = Proxy::start(server).await.unwrap();
    let mut config = scene.scratch.config();
    config.url = proxy.url_for(&scene.scratch.url);
    let databases = Databases::connect(&config.lanes(1).into()).await.unwrap();
    let executor = executor(&databases).await;
    let ledger = Ledger::posting();
    let seen = ledger.seen();
    let node = node_that_does_not_look(&executor).handler(ledger).start().await.unwrap();
    open_wallet(&executor).await;
    until("the node has begun", async || node.handlers()[0].handled == 1).await;

    let (lock, unlock, waiting) = match scene.scratch.dialect {
        Dialect::Postgres => (
            "BEGIN; LOCK TABLE entries IN SHARE MODE",
            "ROLLBACK",
            "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
        ),
        _ => (
            "LOCK TABLES entries READ",
            "UNLOCK TABLES",
            "FROM information_schema.processlist \
             WHERE db = database() AND state LIKE 'Waiting for table%'",
        ),
    };
    let mut locking = scene.scratch.connect().await;
    locking.execute(lock).await;
    let wallet = open_wallet(&executor).await;
    until("the commit waits at the server", async || {
        !scene.scratch.select(&["1"], waiting).await.is_empty()
    })
    .await;
    proxy.stall();
    locking.execute(unlock).await;
    until("it is committed", async || scene.posted(wallet).await == [1]).await;
    proxy.cut();
    proxy.resume();
    proxy.restore();
    until("the node knows", async || node.handlers()[0].handled == 2).await;
    assert_eq!((seen.lock().unwrap().len(), node.handlers()[0].failed), (2, 0));
    assert_eq!(scene.posted(wallet).await, [1]);
    assert_eq!(scene.scratch.count(&scene.scratch.eventlog("deliveries")).await, 0);
}

/// The commit of a run whose delivery is lost waits in the only lane, with others.
async fn a_lost_delivery_refuses_itself_and_none_that_commits_with_it(scene: &Scene) {
    const OTHERS: usize = 8;
    // The lane stays busy until all commits wait for it: none of them may time out before.
    let config = scene.scratch.config().lanes(1).queue_limit(OTHERS + 1);
    let config = config.connection_timeout(Duration::from_secs(60));
    let config = config.commit_timeout(Duration::from_secs(60));
    let databases = Databases::connect(&config.into()).await.unwrap();
    let executor = executor(&databases).await;
    let mut wallets = Vec::new();
    for _ in 0..=OTHERS {
        wallets.push(open_wallet(&executor).await);
    }
    let gate = std::sync::Arc::new(Semaphore::new(0));
    let closed = gate.clone();
    let (answers, mut answered) = tokio::sync::mpsc::unbounded_channel();
    let ledger = Ledger::new(move |ctx, event| {
        let (gate, answers) = (closed.clone(), answers.clone());
        async move {
            let _open = gate.acquire().await?;
            // The queue is full for a moment while the test asks whether it is.
            let kind = loop {
                let answer = ctx.finish(&PostEntry, Posting::of(event)).await;
                match answer.err().map(|error| error.kind()) {
                    Some(ErrorKind::Overloaded) => tokio::task::yield_now().await,
                    kind => break kind,
                }
            };
            answers.send(kind)?;
            Ok(())
        }
        .boxed()
    });
    let seen = ledger.seen();
    let options = HandlerOptions::default().timeout(Duration::from_secs(600)).from_now_on();
    let former = node_that_does_not_look(&executor).handler_with(ledger, options);
    let former = former.start().await.unwrap();
    let lost = open_wallet(&executor).await;
    until("it is being handled", async || seen.lock().unwrap().len() == 1).await;
    assert!(former.pause("ledger.post"));
    scene.scratch.execute(&format!("DELETE FROM {}", scene.scratch.eventlog("nodes"))).await;
    let other = scene.open_again().await;
    let other = node(&other).handler(Ledger::posting()).start().await.unwrap();
    scene.until_posted(1).await;
    other.drain(Duration::from_secs(60)).await;

    let mut locking = scene.scratch.connect().await;
    locking.execute("BEGIN").await;
    let lock = format!("SELECT 1 FROM wallets WHERE id = '{}' FOR UPDATE", wallets[OTHERS]);
    locking.execute(&lock).await;
    let insist = RetryPolicy::none()
        .with(ErrorKind::Overloaded, Budget::new(u32::MAX).cap(Duration::from_millis(10)));
    let deposit =
        |wallet| executor.execute(&DepositMoney, Deposit { wallet, amount: Decimal::ONE });
    let (locked, others) = wallets.split_last().unwrap();
    let is_busy = Notify::new();
    let busy = deposit(*locked).into_future();
    let committing = async {
        is_busy.notified().await;
        let call = |wallet: &Id<_>| deposit(*wallet).retry(insist.clone()).into_future();
        futures_util::future::join_all(others.iter().map(call)).await
    };
    let releasing = async {
        until("the lane is busy", async || waits_for_a_row(scene).await).await;
        gate.add_permits(1);
        is_busy.notify_one();
        loop {
            let more = deposit(others[0]).deadline(Duration::from_millis(100)).await;
            match more.unwrap_err().kind() {
                ErrorKind::Overloaded => break,
                kind => assert_eq!(kind, ErrorKind::Deadline),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        locking.execute("ROLLBACK").await;
    };
    let (first, committed, ()) = tokio::join!(busy, committing, releasing);
    first.unwrap();
    for answer in committed {
        answer.unwrap();
    }
    assert_eq!(answered.recv().await.unwrap(), Some(ErrorKind::DeliveryLost));
    assert_eq!(scene.posted(lost).await, [1]);
    drop(former);
}

/// Whether a session waits for a row that another one has locked.
pub async fn waits_for_a_row(scene: &Scene) -> bool {
    let waiting = match scene.scratch.dialect {
        Dialect::Postgres => {
            "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        }
        _ => {
            // The server answers from a copy that it does not renew while it is asked often.
            tokio::time::sleep(Duration::from_millis(200)).await;
            "FROM information_schema.innodb_trx t JOIN information_schema.processlist p \
             ON p.id = t.trx_mysql_thread_id WHERE t.trx_state = 'LOCK WAIT' AND p.db = database()"
        }
    };
    !scene.scratch.select(&["1"], waiting).await.is_empty()
}
