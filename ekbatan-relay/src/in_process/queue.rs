//! The messages of one subscription that it has not acknowledged.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::OutgoingMessage;

/// What tells a message from others. Each relay sends messages of its own: they differ in their topics and in what
/// they say, also if they are about one event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MessageKey {
    pub(super) relay: &'static str,
    pub(super) id: Uuid,
}

/// The messages of one name.
pub(super) struct Queue {
    pub(super) name: String,
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Default)]
struct State {
    topics: Vec<String>,
    /// Those that no consumer has, in their order.
    waiting: VecDeque<MessageKey>,
    /// All that are not acknowledged.
    messages: HashMap<MessageKey, Entry>,
    is_closed: bool,
}

struct Entry {
    message: Arc<OutgoingMessage>,
    /// How often a consumer had it.
    attempts: u32,
    is_acknowledged: watch::Sender<bool>,
}

/// A message for a consumer.
pub(super) struct Popped {
    pub(super) key: MessageKey,
    pub(super) message: Arc<OutgoingMessage>,
    /// How often a consumer has had it, this time included.
    pub(super) attempt: u32,
}

/// Waits for the acknowledgement of a message.
pub(super) struct Ack(watch::Receiver<bool>);

impl Ack {
    pub(super) async fn acknowledged(mut self) {
        // The sender goes once the message is acknowledged.
        let _ = self.0.wait_for(|is_acknowledged| *is_acknowledged).await;
    }
}

impl Queue {
    pub(super) fn new(name: String) -> Self {
        Self { name, state: Mutex::default(), arrived: Notify::new() }
    }

    pub(super) fn add_topics(&self, topics: impl Iterator<Item = String>) {
        let mut state = self.state();
        for topic in topics {
            if !state.topics.contains(&topic) {
                state.topics.push(topic);
            }
        }
    }

    pub(super) fn wants(&self, topic: &str) -> bool {
        let is_wanted = |wanted: &String| match wanted.strip_suffix('*') {
            Some(begin) => topic.starts_with(begin),
            None => wanted == topic,
        };
        self.state().topics.iter().any(is_wanted)
    }

    /// Adds a message, unless it is there: then its acknowledgement counts for both.
    pub(super) fn push(&self, key: MessageKey, message: &Arc<OutgoingMessage>) -> Ack {
        let mut state = self.state();
        if state.is_closed {
            return Ack(watch::channel(true).1);
        }
        if let Some(entry) = state.messages.get(&key) {
            return Ack(entry.is_acknowledged.subscribe());
        }
        let (is_acknowledged, ack) = watch::channel(false);
        let entry = Entry { message: message.clone(), attempts: 0, is_acknowledged };
        state.messages.insert(key, entry);
        state.waiting.push_back(key);
        drop(state);
        self.arrived.notify_one();
        Ack(ack)
    }

    /// The next message. `None` once the subscription is ended.
    pub(super) async fn pop(&self) -> Option<Popped> {
        loop {
            if let Some(next) = self.try_pop()? {
                return Some(next);
            }
            self.arrived.notified().await;
        }
    }

    fn try_pop(&self) -> Option<Option<Popped>> {
        let mut state = self.state();
        if state.is_closed {
            // Others wait, too.
            self.arrived.notify_one();
            return None;
        }
        let Some(key) = state.waiting.pop_front() else { return Some(None) };
        if !state.waiting.is_empty() {
            self.arrived.notify_one();
        }
        let entry = state.messages.get_mut(&key);
        Some(entry.map(|entry| {
            entry.attempts = entry.attempts.saturating_add(1);
            Popped { key, message: entry.message.clone(), attempt: entry.attempts }
        }))
    }

    /// Ends a message.
    pub(super) fn acknowledge(&self, key: MessageKey) {
        if let Some(entry) = self.state().messages.remove(&key) {
            entry.is_acknowledged.send_replace(true);
        }
    }

    /// Lets a message be delivered again, before those that came later.
    pub(super) fn put_back(&self, key: MessageKey) {
        let mut state = self.state();
        if state.messages.contains_key(&key) {
            state.waiting.push_front(key);
            drop(state);
            self.arrived.notify_one();
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        state.is_closed = true;
        state.waiting.clear();
        for (_, entry) in state.messages.drain() {
            entry.is_acknowledged.send_replace(true);
        }
        drop(state);
        self.arrived.notify_one();
    }

    pub(super) fn has(&self, key: MessageKey) -> bool {
        self.state().messages.contains_key(&key)
    }

    pub(super) fn len(&self) -> usize {
        self.state().messages.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
