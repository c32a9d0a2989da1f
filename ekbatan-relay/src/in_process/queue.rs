//! The messages of one subscription that it has not acknowledged.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};
use uuid::Uuid;

use crate::OutgoingMessage;

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
    waiting: VecDeque<Uuid>,
    /// All that are not acknowledged.
    messages: HashMap<Uuid, Entry>,
    is_closed: bool,
}

struct Entry {
    message: Arc<OutgoingMessage>,
    /// How often a consumer had it.
    attempts: u32,
    is_acknowledged: watch::Sender<bool>,
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
    pub(super) fn push(&self, message: &Arc<OutgoingMessage>) -> Ack {
        let mut state = self.state();
        if state.is_closed {
            return Ack(watch::channel(true).1);
        }
        if let Some(entry) = state.messages.get(&message.id) {
            return Ack(entry.is_acknowledged.subscribe());
        }
        let (is_acknowledged, ack) = watch::channel(false);
        let entry = Entry { message: message.clone(), attempts: 0, is_acknowledged };
        state.messages.insert(message.id, entry);
        state.waiting.push_back(message.id);
        drop(state);
        self.arrived.notify_one();
        Ack(ack)
    }

    /// The next message, and how often a consumer has had it, this time included. `None` once the
    /// subscription is ended.
    pub(super) async fn pop(&self) -> Option<(Arc<OutgoingMessage>, u32)> {
        loop {
            if let Some(next) = self.try_pop()? {
                return Some(next);
            }
            self.arrived.notified().await;
        }
    }

    fn try_pop(&self) -> Option<Option<(Arc<OutgoingMessage>, u32)>> {
        let mut state = self.state();
        if state.is_closed {
            // Others wait, too.
            self.arrived.notify_one();
            return None;
        }
        let Some(id) = state.waiting.pop_front() else { return Some(None) };
        if !state.waiting.is_empty() {
            self.arrived.notify_one();
        }
        let entry = state.messages.get_mut(&id);
        Some(entry.map(|entry| {
            entry.attempts = entry.attempts.saturating_add(1);
            (entry.message.clone(), entry.attempts)
        }))
    }

    /// Ends a message.
    pub(super) fn acknowledge(&self, id: Uuid) {
        if let Some(entry) = self.state().messages.remove(&id) {
            entry.is_acknowledged.send_replace(true);
        }
    }

    /// Lets a message be delivered again, before those that came later.
    pub(super) fn put_back(&self, id: Uuid) {
        let mut state = self.state();
        if state.messages.contains_key(&id) {
            state.waiting.push_front(id);
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

    pub(super) fn has(&self, id: Uuid) -> bool {
        self.state().messages.contains_key(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.state().messages.len()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
