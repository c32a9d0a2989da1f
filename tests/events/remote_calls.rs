//! Remote calls: a request to another system that is sent once, or again with the same key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::domain::Stored;
use ekbatan::events::{
    Delivered, EventsError, HandlerContext, HandlerOptions, InterventionKind, Reconciled,
    RemoteCall, RemoteCallError, RemoteCallState, RemoteFailure, Retention,
};
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::json;
use support::wallet::WalletEvent;
use support::{TestClock, until};
use tokio::sync::{Notify, Semaphore};

use crate::scene::{Failure, Ledger, PostEntry, Posting, Scene, node, post};

on_every_database! {
    later_runs_get_the_outcome_of_the_first_request,
    a_call_in_doubt_parks_its_event_and_is_sent_again_only_if_an_operator_says_so,
    reconcile_finds_out_what_happened,
    what_reconcile_does_not_know_is_asked_again,
    an_idempotent_call_is_sent_again_with_the_same_key,
    a_request_without_an_effect_is_sent_again,
    a_run_that_was_taken_over_sends_nothing,
    an_outcome_that_comes_late_ends_the_doubt,
    a_replayed_event_makes_no_second_call,
    a_call_that_is_under_way_is_not_settled,
    after_its_last_action_a_handler_makes_no_call,
    settled_calls_go_with_their_events_and_those_in_doubt_stay,
}

mod refused {
    use crate::remote_calls::*;

    on_every_database! { only sqlite:
        a_name_that_cannot_be_stored_is_refused,
        an_outcome_that_could_not_be_read_back_leaves_its_call_in_doubt,
    }
}

/// What another system answers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    pub number: i64,
}

/// The number of every receipt that a bank writes, and that of one which an operator knows of.
pub const OF_BANK: i64 = 7;
pub const OF_OPERATOR: i64 = 9;

/// Another system. It counts requests, whether they have an effect or not.
#[derive(Clone, Default)]
pub struct Bank {
    requests: Arc<Mutex<Vec<Uuid>>>,
    /// Whether the next request ends the run that sends it.
    breaks: Arc<AtomicBool>,
}

impl Bank {
    /// The run that sends the first request ends before it has an answer.
    pub fn that_breaks() -> Self {
        let bank = Self::default();
        bank.breaks.store(true, Ordering::SeqCst);
        bank
    }

    pub async fn charge(&self, key: Uuid) -> Result<Receipt, RemoteFailure> {
        self.requests.lock().unwrap().push(key);
        assert!(!self.breaks.swap(false, Ordering::SeqCst), "the run ends here");
        Ok(Receipt { number: OF_BANK })
    }

    pub fn requests(&self) -> Vec<Uuid> {
        self.requests.lock().unwrap().clone()
    }
}

/// Posts the number of a receipt as the version of the wallet.
pub async fn post_receipt(
    ctx: &mut HandlerContext<'_>,
    event: &Delivered<WalletEvent>,
    receipt: Receipt,
) -> Result<(), Failure> {
    let posting = Posting { wallet_version: receipt.number, ..Posting::of(event) };
    Ok(ctx.finish(&PostEntry, posting).await?)
}

/// Charges at most once, and posts the receipt.
pub fn charging(bank: &Bank) -> Ledger {
    let bank = bank.clone();
    Ledger::new(move |ctx, event| {
        let bank = bank.clone();
        async move {
            let receipt = ctx.remote_call("charge", |key| async move { bank.charge(key).await });
            let receipt = receipt.await?;
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    })
}

pub fn quick() -> HandlerOptions {
    HandlerOptions::default().retry(Duration::from_millis(1), Duration::from_millis(5))
}

impl Scene {
    /// The only remote call.
    pub async fn remote_call(&self) -> Stored<RemoteCall> {
        let mut all = self.databases.repository::<RemoteCall>().find_all().await.unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// Waits until an event is parked, and returns its last error.
    pub async fn until_parked(&self) -> String {
        until("an event is parked", async || {
            !self.operations().parked(1).await.unwrap().is_empty()
        })
        .await;
        let parked = self.operations().parked(1).await.unwrap().remove(0);
        parked.last_error.unwrap()
    }
}

async fn later_runs_get_the_outcome_of_the_first_request(scene: &Scene) {
    let bank = Bank::default();
    let own = bank.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let bank = own.clone();
        async move {
            let charge = ctx.remote_call("charge", |key| async move { bank.charge(key).await });
            let receipt = charge.await?;
            if event.attempt < 3 {
                return Err("after the call".into());
            }
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    let call = scene.remote_call().await;
    assert_eq!(bank.requests(), [call.id.uuid()]);
    assert_eq!((call.state, call.requests), (RemoteCallState::Done, 1));
    assert_eq!(call.outcome.as_deref(), Some(r#"{"number":7}"#));
    assert_eq!((&*call.handler, &*call.name), ("ledger.post", "charge"));
}

async fn a_call_in_doubt_parks_its_event_and_is_sent_again_only_if_an_operator_says_so(
    scene: &Scene,
) {
    let bank = Bank::default();
    let (own, fails) = (bank.clone(), Arc::new(AtomicBool::new(true)));
    let ledger = Ledger::new(move |ctx, event| {
        let (bank, fails) = (own.clone(), fails.clone());
        async move {
            let charge = ctx.remote_call("charge", |key| async move {
                let receipt = bank.charge(key).await?;
                if fails.swap(false, Ordering::SeqCst) {
                    return Err(std::io::Error::other("the line is cut").into());
                }
                Ok(receipt)
            });
            let receipt = charge.await?;
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    let error = scene.until_parked().await;
    let call = scene.remote_call().await;
    assert!(error.contains("`charge` of `ledger.post`"), "{error}");
    assert!(error.contains("the line is cut") && error.contains(&call.id.to_string()), "{error}");
    let operations = scene.operations();
    assert_eq!(operations.status().await.unwrap()[0].in_doubt, 1);
    let listed = operations.unsettled_remote_calls(10).await.unwrap();
    assert_eq!((listed.len(), listed[0].state), (1, RemoteCallState::InDoubt));
    assert_eq!(listed[0].error.as_deref(), Some("the line is cut"));

    // A retry of the event alone sends nothing.
    let parked = operations.parked(1).await.unwrap().remove(0);
    operations.retry(parked.id, "alice", "try it").await.unwrap();
    scene.until_parked().await;
    let key = call.id.uuid();
    assert_eq!(bank.requests(), [key]);
    let blank = operations.remote_call_did_not_happen(key, "", "why").await.unwrap_err();
    assert!(matches!(blank, EventsError::Unfit { what: "who", .. }), "{blank}");
    operations.remote_call_did_not_happen(key, "alice", "the bank has nothing").await.unwrap();
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    assert_eq!(bank.requests(), [key, key]);
    let log = operations.interventions(10).await.unwrap();
    let settled = log.iter().find(|row| row.kind == InterventionKind::Settle).unwrap();
    assert_eq!(settled.subject, format!("{key} did not happen"));
    assert_eq!((&*settled.who, &*settled.why), ("alice", "the bank has nothing"));
    let again = operations.remote_call_did_not_happen(key, "alice", "again").await.unwrap_err();
    assert!(matches!(again, EventsError::NotFound { .. }), "{again}");
}

/// Charges at most once. What is in doubt is asked for by `ask`.
fn reconciling(
    bank: &Bank,
    ask: impl Fn(Uuid) -> Result<Reconciled<Receipt>, Failure> + Send + Sync + 'static,
) -> Ledger {
    let (bank, ask) = (bank.clone(), Arc::new(ask));
    Ledger::new(move |ctx, event| {
        let (bank, ask) = (bank.clone(), ask.clone());
        async move {
            let charge = ctx.remote_call("charge", |key| async move { bank.charge(key).await });
            let charge = charge.reconcile(|key| async move { ask(key) });
            let receipt = charge.await?;
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    })
}

async fn reconcile_finds_out_what_happened(scene: &Scene) {
    let happened = Bank::that_breaks();
    let ledger = reconciling(&happened, |_| Ok(Reconciled::Happened(Receipt { number: 8 })));
    let node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    node.drain(Duration::from_secs(60)).await;
    assert_eq!(scene.posted(wallet).await, [8]);
    let call = scene.remote_call().await;
    assert_eq!(happened.requests(), [call.id.uuid()]);
    assert_eq!(
        (call.state, call.outcome.as_deref()),
        (RemoteCallState::Done, Some(r#"{"number":8}"#))
    );

    let lost = Bank::that_breaks();
    let ledger = reconciling(&lost, |_| Ok(Reconciled::DidNotHappen));
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    let requests = lost.requests();
    assert_eq!((requests.len(), requests[0]), (2, requests[1]));
}

async fn what_reconcile_does_not_know_is_asked_again(scene: &Scene) {
    let bank = Bank::that_breaks();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let own = asked.clone();
    let ledger = reconciling(&bank, move |key| {
        let mut asked = own.lock().unwrap();
        asked.push(key);
        match asked.len() {
            1 => Ok(Reconciled::Unknown),
            2 => Err("the bank is closed".into()),
            _ => Ok(Reconciled::Happened(Receipt { number: 8 })),
        }
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [8]);
    let key = scene.remote_call().await.id.uuid();
    assert_eq!((bank.requests(), &*asked.lock().unwrap()), (vec![key], &vec![key; 3]));
}

/// Charges by a bank that recognises the key.
pub fn charging_idempotently(bank: &Bank) -> Ledger {
    let bank = bank.clone();
    Ledger::new(move |ctx, event| {
        let bank = bank.clone();
        async move {
            let charge = ctx.remote_call("charge", |key| async move { bank.charge(key).await });
            let receipt = charge.idempotent().await?;
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    })
}

async fn an_idempotent_call_is_sent_again_with_the_same_key(scene: &Scene) {
    let bank = Bank::that_breaks();
    let ledger = charging_idempotently(&bank);
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    let call = scene.remote_call().await;
    assert_eq!(bank.requests(), [call.id.uuid(); 2]);
    assert_eq!((call.state, call.requests), (RemoteCallState::Done, 2));
}

async fn a_request_without_an_effect_is_sent_again(scene: &Scene) {
    let bank = Bank::default();
    let own = bank.clone();
    let ledger = Ledger::new(move |ctx, event| {
        let bank = own.clone();
        async move {
            let is_first = event.attempt == 1;
            let charge = ctx.remote_call("charge", |key| async move {
                let receipt = bank.charge(key).await?;
                if is_first { Err(RemoteFailure::not_done("it is busy")) } else { Ok(receipt) }
            });
            let receipt = charge.await?;
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    });
    let node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    let call = scene.remote_call().await;
    assert_eq!(bank.requests(), [call.id.uuid(); 2]);
    assert_eq!((call.requests, node.handlers()[0].failed), (2, 1));
}

/// Lets other nodes find all present ones dead, as they do after the lease.
async fn forget_nodes(scene: &Scene) {
    scene.scratch.execute(&format!("DELETE FROM {}", scene.scratch.eventlog("nodes"))).await;
}

async fn a_run_that_was_taken_over_sends_nothing(scene: &Scene) {
    // The first run stands still before its call, as a process does that is stopped.
    let (began, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (answers, mut answered) = tokio::sync::mpsc::unbounded_channel();
    let bank = Bank::default();
    let (own, notify, wait) = (bank.clone(), began.clone(), go_on.clone());
    let frozen = Ledger::new(move |ctx, _| {
        let (bank, began, go_on) = (own.clone(), notify.clone(), wait.clone());
        let answers = answers.clone();
        async move {
            began.notify_one();
            go_on.notified().await;
            let charge = ctx.remote_call("charge", |key| async move { bank.charge(key).await });
            let answer = charge.idempotent().await;
            answers.send(matches!(answer, Err(RemoteCallError::DeliveryLost { .. })))?;
            Ok(answer.map(drop)?)
        }
        .boxed()
    });
    let wallet = scene.open_wallet().await;
    let frozen = scene.node().handler(frozen).start().await.unwrap();
    began.notified().await;
    // Or it would claim the event again, once it has noticed.
    assert!(frozen.pause("ledger.post"));
    forget_nodes(scene).await;
    // The run that takes over has not come to its call when the first one goes on.
    let (taken, may_call) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (own, notify, gate) = (bank.clone(), taken.clone(), may_call.clone());
    let next = Ledger::new(move |ctx, event| {
        let (bank, taken, gate) = (own.clone(), notify.clone(), gate.clone());
        async move {
            taken.notify_one();
            let _permit = gate.acquire().await?;
            let charge = ctx.remote_call("charge", |key| async move { bank.charge(key).await });
            let receipt = charge.await?;
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    });
    let other = scene.open_again().await;
    let _other = node(&other).handler(next).start().await.unwrap();
    taken.notified().await;
    go_on.notify_one();
    assert!(answered.recv().await.unwrap(), "the call is refused");
    assert!(bank.requests().is_empty());
    assert_eq!(scene.scratch.count(&scene.scratch.eventlog("remote_calls")).await, 0);
    may_call.add_permits(1);
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    assert_eq!(bank.requests(), [scene.remote_call().await.id.uuid()]);
}

async fn an_outcome_that_comes_late_ends_the_doubt(scene: &Scene) {
    let (began, may_answer) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (notify, gate) = (began.clone(), may_answer.clone());
    let slow = Ledger::new(move |ctx, event| {
        let (began, gate) = (notify.clone(), gate.clone());
        async move {
            let charge = ctx.remote_call("charge", |_| async move {
                began.notify_one();
                let _permit = gate.acquire().await?;
                Ok(Receipt { number: OF_BANK })
            });
            let receipt = charge.await?;
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    });
    let wallet = scene.open_wallet().await;
    let slow = scene.node().handler(slow).start().await.unwrap();
    began.notified().await;
    assert!(slow.pause("ledger.post"));
    forget_nodes(scene).await;
    let bank = Bank::default();
    let asking = reconciling(&bank, |_| Ok(Reconciled::Unknown));
    let other = scene.open_again().await;
    let _other = node(&other).handler_with(asking, quick()).start().await.unwrap();
    until("the call is in doubt", async || {
        scene.remote_call().await.state == RemoteCallState::InDoubt
    })
    .await;
    may_answer.add_permits(1);
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    assert!(bank.requests().is_empty());
    assert_eq!(scene.remote_call().await.requests, 1);
}

async fn a_replayed_event_makes_no_second_call(scene: &Scene) {
    let bank = Bank::default();
    let (own, fails) = (bank.clone(), Arc::new(AtomicBool::new(true)));
    let ledger = Ledger::new(move |ctx, event| {
        let (bank, fails) = (own.clone(), fails.clone());
        async move {
            let charge = ctx.remote_call("charge", |key| async move { bank.charge(key).await });
            let receipt = charge.await?;
            if fails.swap(false, Ordering::SeqCst) {
                return Err("after the call".into());
            }
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    });
    let options = quick().max_attempts(1).dead_letters();
    let _node = scene.node().handler_with(ledger, options).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    let operations = scene.operations();
    until("it is a dead letter", async || operations.dead_letters(1).await.unwrap().len() == 1)
        .await;
    let letter = operations.dead_letters(1).await.unwrap().remove(0);
    operations.replay(&letter, "alice", "the ledger is open again").await.unwrap();
    scene.until_posted(1).await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    assert_eq!(bank.requests(), [scene.remote_call().await.id.uuid()]);
}

async fn a_call_that_is_under_way_is_not_settled(scene: &Scene) {
    let (began, may_answer) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (notify, gate) = (began.clone(), may_answer.clone());
    let ledger = Ledger::new(move |ctx, event| {
        let (began, gate) = (notify.clone(), gate.clone());
        async move {
            let charge = ctx.remote_call("charge", |_| async move {
                began.notify_one();
                let _permit = gate.acquire().await?;
                Ok(Receipt { number: OF_BANK })
            });
            let receipt = charge.await?;
            post_receipt(ctx, event, receipt).await
        }
        .boxed()
    });
    let _node = scene.node().handler(ledger).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    began.notified().await;
    let operations = scene.operations();
    let listed = operations.unsettled_remote_calls(10).await.unwrap();
    assert_eq!((listed.len(), listed[0].state), (1, RemoteCallState::Sent));
    assert_eq!(operations.status().await.unwrap()[0].in_doubt, 0);
    let outcome = json!({ "number": OF_OPERATOR });
    let key = listed[0].id.uuid();
    let refused = operations.remote_call_happened(key, &outcome, "alice", "I think so").await;
    assert!(refused.unwrap_err().to_string().contains("under way"));
    may_answer.add_permits(1);
    scene.until_handled("ledger.post").await;
    assert_eq!(scene.posted(wallet).await, [OF_BANK]);
    assert!(operations.unsettled_remote_calls(10).await.unwrap().is_empty());
}

async fn after_its_last_action_a_handler_makes_no_call(scene: &Scene) {
    let bank = Bank::default();
    let own = bank.clone();
    let (answers, mut answered) = tokio::sync::mpsc::unbounded_channel();
    let ledger = Ledger::new(move |ctx, event| {
        let (bank, answers) = (own.clone(), answers.clone());
        async move {
            post(ctx, event).await?;
            let charge = ctx.remote_call("charge", |key| async move { bank.charge(key).await });
            answers.send(charge.await.map_err(|error| error.to_string()))?;
            Ok(())
        }
        .boxed()
    });
    let node = scene.node().handler(ledger).start().await.unwrap();
    scene.open_wallet().await;
    let why = answered.recv().await.unwrap().expect_err("it follows the last action");
    assert!(why.starts_with("`ledger.post` has called `finish` already"), "{why}");
    until("it is handled", async || node.handlers()[0].handled == 1).await;
    assert_eq!((bank.requests(), node.handlers()[0].failed), (vec![], 0));
}

async fn settled_calls_go_with_their_events_and_those_in_doubt_stay(scene: &Scene) {
    let bank = Bank::that_breaks();
    let ledger = charging(&bank);
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let in_doubt = scene.open_wallet().await;
    scene.until_parked().await;
    let done = scene.open_wallet().await;
    until("the second wallet is charged", async || scene.posted(done).await == [OF_BANK]).await;
    let operations = scene.operations();
    let parked = operations.parked(1).await.unwrap().remove(0);
    operations.skip(parked.id, "alice", "charged by hand").await.unwrap();
    scene.until_handled("ledger.post").await;

    let clock = Arc::new(TestClock::default());
    clock.set(Utc::now() + Duration::from_secs(3 * 60 * 60));
    let later = Databases::connect(&scene.scratch.config().into()).await.unwrap();
    let later = later.with_clock(clock);
    let retention = Retention::new().events(Retention::LEAST);
    let delete = async || retention.run(&later).await.unwrap();
    let count = async |of: &str| scene.scratch.count(&scene.scratch.eventlog(of)).await;
    // Their events are young.
    assert_eq!((delete().await.remote_calls, count("remote_calls").await), (0, 2));
    scene.age_events().await;
    assert_eq!((delete().await.remote_calls, count("remote_calls").await), (1, 1));
    let left = scene.remote_call().await;
    assert_eq!(left.state, RemoteCallState::InDoubt);
    assert!(scene.posted(in_doubt).await.is_empty());
    let key = left.id.uuid();
    let outcome = json!({ "number": OF_OPERATOR });
    operations.remote_call_happened(key, &outcome, "alice", "the bank says so").await.unwrap();
    assert_eq!((delete().await.remote_calls, count("remote_calls").await), (1, 0));
}

async fn a_name_that_cannot_be_stored_is_refused(scene: &Scene) {
    let ledger = Ledger::new(|ctx, _| {
        async move {
            for name in ["", "a\0", &"x".repeat(256)] {
                let charge = ctx.remote_call(name, |_| async move { Ok(()) });
                assert!(matches!(charge.await, Err(RemoteCallError::Name { .. })));
            }
            Ok(())
        }
        .boxed()
    });
    let node = scene.node().handler(ledger).start().await.unwrap();
    scene.open_wallet().await;
    until("it is handled", async || node.handlers()[0].handled == 1).await;
}

/// JSON has no NaN, so no later run could read it.
async fn an_outcome_that_could_not_be_read_back_leaves_its_call_in_doubt(scene: &Scene) {
    let ledger = Ledger::new(|ctx, event| {
        async move {
            let number: f64 = ctx.remote_call("weigh", |_| async { Ok(f64::NAN) }).await?;
            post_receipt(ctx, event, Receipt { number: number as i64 }).await
        }
        .boxed()
    });
    let _node = scene.node().handler_with(ledger, quick()).start().await.unwrap();
    let wallet = scene.open_wallet().await;
    let why = scene.until_parked().await;
    assert!(why.contains("could not be read back"), "{why}");
    let call = scene.remote_call().await;
    assert_eq!((call.state, call.requests), (RemoteCallState::InDoubt, 1));
    let (key, outcome) = (call.id.uuid(), json!(OF_OPERATOR));
    let operations = scene.operations();
    operations.remote_call_happened(key, &outcome, "alice", "weighed again").await.unwrap();
    until("it is posted", async || scene.posted(wallet).await == [OF_OPERATOR]).await;
}

/// Calls `charge` and stands still in it, as a process that is killed there.
pub fn stopping<'a>(
    ctx: &'a mut HandlerContext<'_>,
    at: impl FnOnce(Uuid) + Send + 'a,
) -> BoxFuture<'a, Result<(), Failure>> {
    async move {
        let charge = ctx.remote_call("charge", |key| async move {
            at(key);
            std::future::pending::<Result<Receipt, RemoteFailure>>().await
        });
        Ok(charge.await.map(drop)?)
    }
    .boxed()
}
