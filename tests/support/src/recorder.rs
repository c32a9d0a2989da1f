//! Records the spans and events of one test.
//!
//! tracing caches for each callsite whether a subscriber is interested in it. While a process has
//! one dispatcher, tracing decides by the subscriber of the thread that reaches the callsite
//! first; if that thread has none, the callsite stays disabled in the whole process. A subscriber
//! that each test installs for its own thread therefore misses spans by chance.
//!
//! Invariants: one subscriber is the default of the whole process from the first test on, and a
//! second dispatcher lives as long as the process, so the decision for a callsite never depends on
//! the thread that reaches it first. The subscriber enables a span or event only if a recorder is
//! active on the current thread, and hands it to that recorder. Later records of a span reach the
//! same recorder from any thread.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, OnceLock};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id as SpanId, Record};
use tracing::subscriber::{Interest, NoSubscriber};
use tracing::{Dispatch, Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

thread_local! {
    /// The recorder that receives what this thread does.
    static ACTIVE: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// A recorded span or event.
#[derive(Debug, Clone)]
pub struct Recorded {
    /// The id of a span; `None` for an event. Ids of closed spans are used again.
    pub id: Option<u64>,
    /// The level.
    pub level: Level,
    /// The name of the span or event.
    pub name: String,
    /// The name of the enclosing span.
    pub parent: Option<String>,
    /// The ids of the spans that this span follows from.
    pub follows: Vec<u64>,
    /// The fields, as text.
    pub fields: BTreeMap<String, String>,
}

impl Recorded {
    fn new(metadata: &Metadata<'_>, parent: Option<&'static str>, fields: Fields) -> Self {
        Self {
            id: None,
            level: *metadata.level(),
            name: metadata.name().to_owned(),
            parent: parent.map(str::to_owned),
            follows: Vec::new(),
            fields: fields.0,
        }
    }

    /// The value of a field, if it was recorded.
    pub fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

/// Formats fields as text.
#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// The spans and events of one thread, in the order in which they began.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<Recorded>>>);

impl Recorder {
    /// Installs the subscriber of the process, unless it is installed. Tests call this before
    /// they run code of the framework.
    pub fn install() {
        static SECOND_DISPATCHER: OnceLock<Dispatch> = OnceLock::new();
        SECOND_DISPATCHER.get_or_init(|| {
            let second = Dispatch::new(NoSubscriber::default());
            tracing::subscriber::set_global_default(tracing_subscriber::registry().with(Router))
                .expect("no other subscriber is the default of this process");
            second
        });
    }

    /// Records what this thread does until the guard is dropped.
    pub fn start() -> (Self, RecorderGuard) {
        Self::install();
        // A thread that registered a callsite during the installation may have disabled it.
        tracing::callsite::rebuild_interest_cache();
        let recorder = Self::default();
        let previous = ACTIVE.replace(Some(recorder.clone()));
        (recorder, RecorderGuard { previous, not_send: PhantomData })
    }

    /// Every span and event.
    pub fn all(&self) -> Vec<Recorded> {
        self.0.lock().unwrap().clone()
    }

    /// The spans and events of this name.
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

    /// Adds a span or event and returns its index.
    fn push(&self, recorded: Recorded) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(recorded);
        all.len() - 1
    }
}

/// Stops recording when it is dropped, on the thread that started it.
pub struct RecorderGuard {
    previous: Option<Recorder>,
    not_send: PhantomData<*const ()>,
}

impl Drop for RecorderGuard {
    fn drop(&mut self) {
        ACTIVE.set(self.previous.take());
    }
}

/// The recorder of the current thread. It is cloned, because formatting the fields of a span may
/// emit further events.
fn active() -> Option<Recorder> {
    // A thread that ends may still emit events.
    ACTIVE.try_with(|active| active.borrow().clone()).ok().flatten()
}

/// Where a span is recorded; stored with the span.
struct Slot {
    recorder: Recorder,
    index: usize,
}

impl Slot {
    fn change(&self, change: impl FnOnce(&mut Recorded)) {
        change(&mut self.recorder.0.lock().unwrap()[self.index]);
    }
}

/// Hands spans and events to the active recorder.
struct Router;

impl<S: Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Router {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        active().is_some()
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &SpanId, context: Context<'_, S>) {
        let (Some(recorder), Some(span)) = (active(), context.span(id)) else {
            return;
        };
        let parent = span.parent().map(|parent| parent.name());
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        let mut recorded = Recorded::new(attributes.metadata(), parent, fields);
        recorded.id = Some(id.into_u64());
        let index = recorder.push(recorded);
        span.extensions_mut().insert(Slot { recorder, index });
    }

    fn on_record(&self, id: &SpanId, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(slot) = span.extensions().get::<Slot>() {
            // Formatting a value may emit events, so the fields are read before the lock is taken.
            let mut fields = Fields::default();
            values.record(&mut fields);
            slot.change(|recorded| recorded.fields.extend(fields.0));
        }
    }

    fn on_follows_from(&self, id: &SpanId, follows: &SpanId, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some(slot) = span.extensions().get::<Slot>() {
            slot.change(|recorded| recorded.follows.push(follows.into_u64()));
        }
    }

    fn on_event(&self, event: &Event<'_>, context: Context<'_, S>) {
        let Some(recorder) = active() else { return };
        let parent = context.event_span(event).map(|span| span.name());
        let mut fields = Fields::default();
        event.record(&mut fields);
        recorder.push(Recorded::new(event.metadata(), parent, fields));
    }
}
