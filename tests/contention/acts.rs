//! Actions made from closures, and the queue of one contention key that a test fills call by call.

use std::future::{IntoFuture, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Poll;
use std::time::Duration;

use ekbatan::action::{Coalesced, RetryPolicy};
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use support::TestDatabase;
use support::things::{Thing, ThingEvent, quiet, thing};
use support::{Recorded, Recorder, RecorderGuard};
use tokio::sync::Semaphore;

/// The error of the suite's actions.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("refused: {0}")]
pub struct Refused(pub String);

impl From<ReadError> for Refused {
    fn from(error: ReadError) -> Self {
        Self(error.to_string())
    }
}

/// Parameters of actions that take none.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Nothing {}

type Perform<O> = Box<
    dyn for<'c, 'x> Fn(&'c mut ActionContext<'x>) -> BoxFuture<'c, Result<O, Refused>>
        + Send
        + Sync,
>;

/// An action that runs a closure and counts its runs.
pub struct Act<O> {
    perform: Perform<O>,
    runs: AtomicU32,
}

pub fn act<O>(
    perform: impl for<'c, 'x> Fn(&'c mut ActionContext<'x>) -> BoxFuture<'c, Result<O, Refused>>
    + Send
    + Sync
    + 'static,
) -> Act<O> {
    Act { perform: Box::new(perform), runs: AtomicU32::new(0) }
}

impl<O> Act<O> {
    pub fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl<O: Send> Action for Act<O> {
    const NAME: &'static str = "contention.act";
    type Params = Nothing;
    type Output = O;
    type Error = Refused;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<O, Refused> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        (self.perform)(ctx).await
    }
}

pub type Call<'a, O> = Pin<Box<dyn Future<Output = Result<O, ExecuteError<Refused>>> + Send + 'a>>;

/// Groups and turns without a time limit, so that no test depends on a fast machine.
pub fn together() -> Coalesced {
    Coalesced::default().time(Duration::MAX).turn(Duration::MAX)
}

/// A call with the contention key that the calls of a test share.
pub fn in_queue<'a, O: Send>(executor: &'a ActionExecutor, act: &'a Act<O>) -> Execution<'a, O> {
    executor
        .execute(act, Nothing {})
        .contention(together())
        .contention_keys([LockKey::named("the queue")])
        .retry(RetryPolicy::none())
}

type Execution<'a, O> = ekbatan::action::Execution<'a, Act<O>>;

/// Polls the call once, which puts it into the queue.
pub async fn enqueued<O: Send>(call: Execution<'_, O>) -> Call<'_, O> {
    let mut call = call.into_future();
    assert!(poll_once(&mut call).await.is_pending(), "the call waits for its turn");
    call
}

/// Polls the future once.
pub async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// Blocks those that pass it until it is opened.
#[derive(Clone)]
pub struct Gate(Arc<Semaphore>);

impl Gate {
    pub fn closed() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub fn open(&self) {
        self.0.add_permits(1_000);
    }

    pub async fn pass(&self) {
        self.0.acquire().await.unwrap().forget();
    }
}

/// Adds one to `small`, with an event.
pub fn touch(id: Id<Thing>) -> Act<Stored<Thing>> {
    act(move |ctx| {
        async move {
            let thing = ctx.get(id).await?;
            Ok(ctx.plan().update(thing.apply(|thing| {
                thing.small += 1;
                ThingEvent::Touched
            })))
        }
        .boxed()
    })
}

/// Like [`touch`], but waits for the gate between its read and its change.
pub fn touch_at(gate: &Gate, id: Id<Thing>) -> Act<Stored<Thing>> {
    let gate = gate.clone();
    act(move |ctx| {
        let gate = gate.clone();
        async move {
            let thing = ctx.get(id).await.unwrap();
            gate.pass().await;
            Ok(ctx.plan().update(thing.apply(|thing| {
                thing.small += 1;
                ThingEvent::Touched
            })))
        }
        .boxed()
    })
}

/// Like [`touch`], but opens the first gate after its read, and then waits for the second.
pub fn touch_after_reading(id: Id<Thing>) -> (Act<Stored<Thing>>, Gate, Gate) {
    let (read, gate) = (Gate::closed(), Gate::closed());
    let (has_read, may_go_on) = (read.clone(), gate.clone());
    let touch = act(move |ctx| {
        let (read, gate) = (has_read.clone(), may_go_on.clone());
        async move {
            let thing = ctx.get(id).await.unwrap();
            read.open();
            gate.pass().await;
            Ok(ctx.plan().update(thing.apply(|thing| {
                thing.small += 1;
                ThingEvent::Touched
            })))
        }
        .boxed()
    });
    (touch, read, gate)
}

/// Occupies the queue until the gate is open, and changes nothing.
pub fn hold(gate: &Gate) -> Act<()> {
    let gate = gate.clone();
    act(move |_| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(())
        }
        .boxed()
    })
}

pub async fn a_thing(db: &TestDatabase) -> Stored<Thing> {
    db.things().add(quiet(thing("the thing"))).await.unwrap()
}

/// The versions in the events of a row, in the order of the events.
pub async fn event_versions(db: &TestDatabase, id: Id<Thing>) -> Vec<i64> {
    let tail = format!("FROM {} WHERE model_id = '{id}'", db.eventlog("events"));
    let mut rows = db.select(&["id", "model_version"], &tail).await;
    rows.sort();
    rows.iter().map(|row| row[1].as_deref().unwrap().parse().unwrap()).collect()
}

/// Counts the groups that the current thread commits.
pub struct Groups(Recorder);

impl Groups {
    /// Counts until the guard is dropped.
    pub fn count() -> (Self, RecorderGuard) {
        let (recorder, guard) = Recorder::start();
        (Self(recorder), guard)
    }

    /// The number of calls of each group, in the order of the commits.
    pub fn sizes(&self) -> Vec<u64> {
        let commits = self.0.of("ekbatan.contention.commit");
        let size = |commit: &Recorded| commit.field("ekbatan.contention.group_size")?.parse().ok();
        commits.iter().filter_map(size).collect()
    }
}
