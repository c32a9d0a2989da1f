//! What can be seen of locks: spans, events and counters.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, LockKey, LockOptions, LockProvider, LockScope, ProcessBackend,
};
use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use tracing::Instrument;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id as SpanId, Record};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::database::{Kind as DatabaseKind, TestDatabase};
use crate::providers::{Kind, LONG, on_postgres};
use crate::wallet::{Deposit, DepositMoney, OpenWallet, Opening};

const ACQUIRE: &str = "ekbatan.lock.acquire";
const HOLD: &str = "ekbatan.lock.hold";

/// A span or event: its name, that of the span around it, and its fields.
#[derive(Debug, Clone, Default)]
struct Seen {
    id: Option<u64>,
    name: String,
    parent: Option<String>,
    follows: Vec<u64>,
    fields: BTreeMap<String, String>,
}

impl Seen {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(&format!("ekbatan.lock.{name}")).map(String::as_str)
    }
}

impl Visit for Seen {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// Keeps what is seen in this thread, which is the only one of these tests.
#[derive(Clone, Default)]
struct Recorder {
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Recorder {
    fn install() -> (Self, DefaultGuard) {
        let recorder = Self::default();
        let subscriber = tracing_subscriber::registry().with(recorder.clone());
        (recorder, tracing::subscriber::set_default(subscriber))
    }

    fn of(&self, name: &str) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        seen.iter().filter(|seen| seen.name == name).cloned().collect()
    }

    fn change(&self, id: &SpanId, change: impl FnOnce(&mut Seen)) {
        let mut all = self.seen.lock().unwrap();
        // An id may be used again once its span is closed.
        if let Some(seen) = all.iter_mut().rev().find(|seen| seen.id == Some(id.into_u64())) {
            change(seen);
        }
    }
}

impl<S: tracing::Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &SpanId, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| span.parent());
        let mut seen = Seen {
            id: Some(id.into_u64()),
            name: attributes.metadata().name().to_owned(),
            parent: parent.map(|parent| parent.name().to_owned()),
            ..Seen::default()
        };
        attributes.record(&mut seen);
        self.seen.lock().unwrap().push(seen);
    }

    fn on_record(&self, id: &SpanId, values: &Record<'_>, _: Context<'_, S>) {
        self.change(id, |seen| values.record(seen));
    }

    fn on_follows_from(&self, id: &SpanId, follows: &SpanId, _: Context<'_, S>) {
        self.change(id, |seen| seen.follows.push(follows.into_u64()));
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut seen = Seen {
            name: event.metadata().name().to_owned(),
            parent: context.event_span(event).map(|span| span.name().to_owned()),
            ..Seen::default()
        };
        event.record(&mut seen);
        self.seen.lock().unwrap().push(seen);
    }
}

fn in_process() -> LockProvider {
    LockProvider::new(ProcessBackend::new(), "test")
}

#[tokio::test]
async fn a_lease_shows_as_its_acquisition_and_its_hold() {
    let locks = in_process();
    let (recorder, _guard) = Recorder::install();
    let around = tracing::info_span!("around");
    let key = lock_key!("wallet", 17);
    let lease = locks.acquire(&key, LONG).instrument(around).await.unwrap();
    let token = lease.token().to_string();
    assert!(recorder.of(HOLD)[0].field("outcome").is_none(), "it is still held");
    assert!(lease.release().await);

    let [acquire, hold] = [recorder.of(ACQUIRE).remove(0), recorder.of(HOLD).remove(0)];
    for span in [&acquire, &hold] {
        assert_eq!(span.parent.as_deref(), Some("around"));
        assert_eq!(span.field("key"), Some("wallet:17"));
        assert_eq!(span.field("provider"), Some("in-process"));
        assert_eq!(span.field("token"), Some(&*token));
    }
    assert_eq!(acquire.field("outcome"), Some("granted"));
    assert_eq!(acquire.field("handed_on"), Some("0"));
    assert!(acquire.field("wait_us").is_some() && acquire.follows.is_empty());
    assert_eq!(hold.field("outcome"), Some("released"));
    assert!(hold.field("held_us").is_some());
}

#[tokio::test]
async fn who_waits_follows_from_who_holds() {
    let locks = in_process();
    let key = LockKey::named("k");
    let (recorder, _guard) = Recorder::install();
    let first = locks.acquire(&key, LONG).await.unwrap();
    let waiting: Vec<_> = (0..2)
        .map(|_| {
            let (locks, key) = (locks.clone(), key.clone());
            tokio::spawn(async move { locks.acquire(&key, LONG).await.unwrap().release().await })
        })
        .collect();
    while locks.inspect(&key).await.unwrap().unwrap().waiting_here < 2 {
        tokio::task::yield_now().await;
    }
    assert!(first.release().await);
    for waiter in waiting {
        assert!(waiter.await.unwrap());
    }
    let holds: Vec<u64> = recorder.of(HOLD).iter().filter_map(|hold| hold.id).collect();
    let acquired = recorder.of(ACQUIRE);
    assert_eq!((holds.len(), acquired.len()), (3, 3));
    assert!(acquired[0].follows.is_empty() && acquired[0].field("between_us").is_none());
    assert_eq!(acquired[1].follows, holds[..1], "it came while the first one held");
    assert_eq!(acquired[2].follows, holds[..2], "and so did the last, but the second was between");
    assert!(acquired[1].field("between_us").is_some());
    let counters = locks.counters();
    assert_eq!((counters.granted, counters.contended, counters.lost), (3, 2, 0));
    assert!(counters.waited >= counters.between);
}

#[tokio::test]
async fn a_busy_key_a_reentry_and_a_loss_are_told_apart() {
    let locks = in_process();
    let key = LockKey::named("k");
    let (recorder, _guard) = Recorder::install();
    let short = Duration::from_millis(20);
    LockScope::run(async {
        let lease = locks.acquire(&key, LONG).await.unwrap();
        drop(locks.acquire(&key, LONG).await.unwrap());
        let (locks, key) = (locks.clone(), key.clone());
        let other = async move {
            for wait in [Duration::ZERO, short] {
                assert!(locks.try_acquire(&key, wait, LONG).await.unwrap().is_none());
            }
        };
        tokio::spawn(other).await.unwrap();
        assert!(lease.release().await);
    })
    .await;
    let outcomes: Vec<_> =
        recorder.of(ACQUIRE).iter().map(|span| span.field("outcome").unwrap().to_owned()).collect();
    assert_eq!(outcomes, ["granted", "granted", "busy", "busy"]);
    let held = recorder.of(HOLD);
    assert_eq!(held.len(), 1, "a scope holds a key once");
    for busy in &recorder.of(ACQUIRE)[2..] {
        assert_eq!(busy.follows, [held[0].id.unwrap()]);
    }
    assert!(locks.force_release(&key, "nobody has it").await.is_ok_and(|ended| !ended));
    assert_eq!(recorder.of("ekbatan.lock.forced").len(), 1);

    let lease = locks.acquire(&key, short).await.unwrap();
    lease.lost().await;
    assert!(!lease.release().await);
    // Whoever serves the key may hear of it after who holds it.
    while recorder.of("ekbatan.lock.lost").is_empty() {
        tokio::task::yield_now().await;
    }
    let lost = recorder.of("ekbatan.lock.lost");
    assert_eq!((lost.len(), lost[0].parent.as_deref()), (1, Some(HOLD)));
    assert_eq!(recorder.of(HOLD)[1].field("outcome"), Some("expired"));
    let counters = locks.counters();
    assert_eq!((counters.granted, counters.reentered, counters.lost), (2, 1, 1));
    assert_eq!(counters.busy, 2);
}

#[tokio::test]
async fn a_waiter_names_the_process_that_it_waits_for() {
    for kind in [Kind::PostgresLease, Kind::PostgresSession] {
        let url = PostgresServer::shared().await.unwrap().create_database().await.unwrap();
        let (theirs, ours) = (on_postgres(kind, &url).await, on_postgres(kind, &url).await);
        let key = LockKey::named("k");
        let (recorder, _guard) = Recorder::install();
        let held = theirs.acquire(&key, LONG).await.unwrap();
        let waiting = {
            let (ours, key) = (ours.clone(), key.clone());
            tokio::spawn(async move { ours.acquire(&key, LONG).await.unwrap().release().await })
        };
        let named = || {
            recorder.of(ACQUIRE).get(1).and_then(|span| span.field("waited_for").map(str::to_owned))
        };
        let holder = loop {
            match named() {
                Some(holder) => break holder,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        };
        assert!(holder.contains(&std::process::id().to_string()), "{holder}");
        assert!(held.release().await && waiting.await.unwrap());
        let acquired = &recorder.of(ACQUIRE)[1];
        if kind == Kind::PostgresLease {
            // What the server counts, without what a process counts behind it.
            let token = (held.token() >> 16).to_string();
            assert_eq!(acquired.field("waited_for_token"), Some(&*token));
        }
        let counters = ours.counters();
        assert_eq!((counters.granted, counters.contended), (1, 1), "{kind:?}");
        assert!(counters.hints + counters.polls > 0, "{kind:?}");
        let retries = recorder.of("ekbatan.lock.retry");
        assert!(retries.iter().all(|retry| retry.parent.as_deref() == Some(ACQUIRE)));
        assert_eq!(retries.len() as u64, counters.hints + counters.polls);
    }
}

#[tokio::test]
async fn a_commit_that_the_fence_refuses_is_told_and_counted() {
    let database = TestDatabase::start(DatabaseKind::Sqlite).await;
    let executor = database.executor();
    let opening = Opening { owner: "alice".to_owned(), currency: "EUR".to_owned() };
    let wallet = executor.execute(&OpenWallet, opening).await.unwrap().id;
    let (locks, key) = (in_process(), lock_key!("wallet", wallet));
    let (recorder, _guard) = Recorder::install();
    let lease = locks.take(&key, &LockOptions::default()).await.unwrap().unwrap();
    assert!(lease.release().await);
    let deposit = Deposit { wallet, amount: Decimal::ONE };
    let refused = executor.execute(&DepositMoney, deposit).fenced_by(&lease).await;
    assert!(matches!(refused, Err(ExecuteError::FenceLost { .. })), "{refused:?}");
    assert_eq!(executor.fence_refusals(), 1);
    let told = recorder.of("ekbatan.lock.fence_refused");
    assert_eq!((told.len(), told[0].parent.as_deref()), (1, Some("ekbatan.action.execute")));
    assert!(told[0].fields["key"].ends_with(&wallet.to_string()));
}
