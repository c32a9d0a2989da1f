//! Records the spans and events of one test.
//!
//! Invariants: the process has one subscriber, which is never removed. It is enabled only on
//! threads that hold a [`RecorderGuard`], and passes what such a thread does to its recorder.
//!
//! A subscriber per test does not work: while only one dispatcher is alive, `tracing` asks the
//! thread that first reaches a span or event whether it is of interest. If that thread has no
//! subscriber, the answer "never" is cached for all threads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, Once};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

/// A span or an event.
#[derive(Debug, Clone, Default)]
pub struct Recorded {
    /// The id of a span; events have none.
    pub id: Option<u64>,
    pub name: String,
    /// The name of the span around it.
    pub parent: Option<String>,
    /// The ids of the spans that a span follows from.
    pub follows: Vec<u64>,
    pub fields: BTreeMap<String, String>,
}

impl Recorded {
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

impl Visit for Recorded {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// The spans and events of one thread, in the order in which they began.
#[derive(Debug, Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<Recorded>>>);

impl Recorder {
    /// Records what the current thread does until the guard is dropped.
    pub fn install() -> (Self, RecorderGuard) {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            let subscriber = tracing_subscriber::registry().with(Router);
            tracing::subscriber::set_global_default(subscriber).unwrap();
        });
        // Another thread may have registered a callsite while the subscriber was being set.
        tracing::callsite::rebuild_interest_cache();
        let recorder = Self::default();
        let previous = CURRENT.replace(Some(recorder.clone()));
        assert!(previous.is_none(), "a thread has one recorder at a time");
        (recorder, RecorderGuard(PhantomData))
    }

    /// Everything that was recorded so far.
    pub fn all(&self) -> Vec<Recorded> {
        self.0.lock().unwrap().clone()
    }

    /// The spans or events of this name.
    pub fn of(&self, name: &str) -> Vec<Recorded> {
        let recorded = self.0.lock().unwrap();
        recorded.iter().filter(|recorded| recorded.name == name).cloned().collect()
    }

    /// The only span or event of this name.
    #[track_caller]
    pub fn one(&self, name: &str) -> Recorded {
        let mut found = self.of(name);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found.remove(0)
    }

    fn push(&self, recorded: Recorded) {
        self.0.lock().unwrap().push(recorded);
    }

    fn change(&self, id: &Id, change: impl FnOnce(&mut Recorded)) {
        let mut all = self.0.lock().unwrap();
        // The id of a closed span may be used again; the latest span is the one that is open.
        if let Some(span) = all.iter_mut().rev().find(|span| span.id == Some(id.into_u64())) {
            change(span);
        }
    }
}

/// Ends the recording of its thread when it is dropped.
pub struct RecorderGuard(PhantomData<*const ()>);

impl Drop for RecorderGuard {
    fn drop(&mut self) {
        CURRENT.take();
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// The recorder of the current thread. It is cloned, so that a span whose fields are formatted
/// may emit further events.
fn current() -> Option<Recorder> {
    // A thread that ends may still close spans.
    CURRENT.try_with(|current| current.borrow().clone()).ok().flatten()
}

/// Passes spans and events to the recorder of the thread that they happen on.
struct Router;

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Router {
    /// Nothing is cached: the answer depends on the thread.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        current().is_some()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(recorder) = current() else { return };
        let parent = context.span(id).and_then(|span| span.parent());
        let mut span = Recorded {
            id: Some(id.into_u64()),
            name: attributes.metadata().name().to_owned(),
            parent: parent.map(|parent| parent.name().to_owned()),
            ..Recorded::default()
        };
        attributes.record(&mut span);
        recorder.push(span);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, _: Context<'_, S>) {
        if let Some(recorder) = current() {
            recorder.change(id, |span| values.record(span));
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, _: Context<'_, S>) {
        if let Some(recorder) = current() {
            recorder.change(id, |span| span.follows.push(follows.into_u64()));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(recorder) = current() else { return };
        let mut recorded = Recorded {
            name: event.metadata().name().to_owned(),
            parent: context.event_span(event).map(|span| span.name().to_owned()),
            ..Recorded::default()
        };
        event.record(&mut recorded);
        recorder.push(recorded);
    }
}
