//! A handler of a node: what it wants, its options, and what it has done so far.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use ekbatan_core::__private::deliveries::{EventKind, StoredEvent, Wanted};
use ekbatan_core::action::{Action, Priority};
use ekbatan_core::domain::{EventName, ShardIdentifier};

use crate::error::BoxError;
use crate::handlers::any_handler::{AnyHandler, AnyRelay, EnqueuedCalls};
use crate::options::{Order, StartFrom};
use crate::relay::EventRelay;
use crate::{EventHandler, HandledEvent, HandlerContext, HandlerOptions};

/// The priority of all deliveries of events.
const OF_EVENTS: &[Priority] = &[Priority::Normal];

/// How many deliveries a node holds for a relay at most.
const HELD_FOR_RELAY: usize = 1_024;

/// The names of relays. They come from a configuration, or from the subscriptions of other nodes; each is
/// kept once, for as long as the process lives.
static NAMES: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);

/// What handles events.
enum HandlerKind {
    /// One at a time.
    Handler(Box<dyn AnyHandler>),
    /// Several at a time, undecoded.
    Relay(Arc<dyn AnyRelay>, usize),
}

/// What a handler has done on one shard.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) handled: u64,
    pub(crate) failed: u64,
}

/// A handler, its options, and what it has done so far.
pub(crate) struct Handler {
    pub(crate) name: &'static str,
    pub(crate) options: HandlerOptions,
    /// The names of the events that it wants.
    pub(crate) events: Vec<String>,
    /// What these names mean.
    wanted: Vec<Wanted>,
    /// The names and versions of the events that its code knows; none if it decodes no events.
    known: &'static [EventName],
    /// The names of events that it got and does not handle.
    not_handled: Mutex<HashSet<String>>,
    /// The priorities that its deliveries may have, the highest first.
    pub(crate) priorities: &'static [Priority],
    pub(crate) paused: Arc<AtomicBool>,
    counts: Mutex<BTreeMap<ShardIdentifier, Counts>>,
    kind: HandlerKind,
}

impl Handler {
    pub(crate) fn new<H: EventHandler>(handler: H, options: HandlerOptions) -> Self {
        let names = |known: &[EventName]| known.iter().map(|name| name.name.to_owned()).collect();
        let events =
            if options.only.is_empty() { names(H::Event::NAMES) } else { options.only.clone() };
        let kind = HandlerKind::Handler(Box::new(handler));
        let handler = Self::of_kind(H::NAME, options, events, OF_EVENTS, kind);
        Self { known: H::Event::NAMES, ..handler }
    }

    fn of_kind(
        name: &'static str,
        options: HandlerOptions,
        events: Vec<String>,
        priorities: &'static [Priority],
        kind: HandlerKind,
    ) -> Self {
        Self {
            name,
            options,
            wanted: events.iter().map(|text| Wanted::read(text)).collect(),
            events,
            known: &[],
            not_handled: Mutex::default(),
            priorities,
            paused: Arc::default(),
            counts: Mutex::default(),
            kind,
        }
    }

    /// Whether it runs enqueued calls, and handles no events.
    pub(crate) fn is_of_calls(&self) -> bool {
        self.wanted == [Wanted::Calls]
    }

    /// The handler of an action's enqueued calls.
    pub(crate) fn of_action<A: Action + 'static>(action: A, mut options: HandlerOptions) -> Self {
        // A process of an earlier release takes this for a subscription to events, and sweeps those from now on.
        options.start_from = StartFrom::Now;
        let kind = HandlerKind::Handler(Box::new(EnqueuedCalls(action)));
        Self::of_kind(A::NAME, options, vec![Wanted::Calls.text()], &Priority::ALL, kind)
    }

    /// The handler that a relay is.
    pub(crate) fn of_relay<R: EventRelay>(relay: R) -> Self {
        let (options, batch) = (relay.options(), relay.batch_size());
        let mut events = relay.selection().texts();
        if relay.fences() {
            events.push(Wanted::Fence.text());
        }
        let options = HandlerOptions { order: Order::PerModel, max_age: None, ..options };
        let name = kept_name(relay.name());
        let kind = HandlerKind::Relay(Arc::new(relay), batch);
        Self::of_kind(name, options, events, OF_EVENTS, kind)
    }

    /// Whether it wants the events of a kind. Calls come to the action that they name.
    pub(crate) fn wants(&self, kind: EventKind<'_>) -> bool {
        self.is_of_calls() || self.wanted.iter().any(|wanted| wanted.has(kind))
    }

    /// Whether an event has a later version than its code knows. Its payload may fit all the same, and
    /// mean something else.
    pub(crate) fn has_later_version(&self, event: &StoredEvent) -> bool {
        let known = self.known.iter().find(|known| known.name == event.event_type);
        known.is_some_and(|known| event.event_version > known.version)
    }

    /// Takes note of an event that it does not handle. `true` if it is the first one with this name.
    pub(crate) fn note_not_handled(&self, event: &str) -> bool {
        let mut events = self.not_handled.lock().unwrap_or_else(PoisonError::into_inner);
        !events.contains(event) && events.insert(event.to_owned())
    }

    /// The relay, if it is one.
    pub(crate) fn relay(&self) -> Option<&Arc<dyn AnyRelay>> {
        match &self.kind {
            HandlerKind::Relay(relay, _) => Some(relay),
            HandlerKind::Handler(_) => None,
        }
    }

    /// What it is, in words.
    pub(crate) fn description(&self) -> String {
        match &self.kind {
            HandlerKind::Handler(handler) => {
                let kind = if self.is_of_calls() { "action" } else { "handler" };
                format!("the {kind} `{}`", handler.type_name())
            }
            // All relays are of few types.
            HandlerKind::Relay(..) => format!("the relay `{}`", self.name),
        }
    }

    /// How many deliveries a run has at most.
    pub(crate) fn batch_size(&self) -> usize {
        if let HandlerKind::Relay(_, size) = self.kind { size } else { 1 }
    }

    /// How many deliveries of one priority a node holds for the handler at most, on each shard.
    pub(crate) fn most_held(&self) -> usize {
        if let HandlerKind::Relay(_, size) = self.kind {
            // One batch waits while one is under way.
            let held = size.saturating_mul(self.options.concurrency.saturating_add(1));
            return held.clamp(64, HELD_FOR_RELAY);
        }
        self.options.concurrency.saturating_mul(4).clamp(64, 1_024)
    }

    /// The name and the aliases.
    pub(crate) fn names(&self) -> Vec<String> {
        let aliases = self.options.aliases.iter().cloned();
        std::iter::once(self.name.to_owned()).chain(aliases).collect()
    }

    pub(crate) async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: StoredEvent,
        attempt: u32,
        shard: ShardIdentifier,
    ) -> Result<(), BoxError> {
        match &self.kind {
            HandlerKind::Handler(handler) => handler.handle(ctx, event, attempt, shard).await,
            HandlerKind::Relay(..) => Err("a relay gets its events in batches".into()),
        }
    }

    /// Counts what the handler has done on a shard.
    pub(crate) fn count(&self, shard: ShardIdentifier, count: impl FnOnce(&mut Counts)) {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        count(counts.entry(shard).or_default());
    }

    /// What the handler has done on one shard.
    pub(crate) fn counts_of(&self, shard: ShardIdentifier) -> Counts {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.get(&shard).copied().unwrap_or_default()
    }

    /// What the handler has done on all shards.
    pub(crate) fn counts(&self) -> Counts {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.values().fold(Counts::default(), |sum, of| Counts {
            handled: sum.handled + of.handled,
            failed: sum.failed + of.failed,
        })
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }
}

/// The name of a relay, kept for the life of the process.
pub(crate) fn kept_name(name: &str) -> &'static str {
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(kept) = names.get(name) {
        return kept;
    }
    let kept: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(kept);
    kept
}
