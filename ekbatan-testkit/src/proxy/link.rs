//! What a proxy was told to do, and what it counted.
//!
//! What always holds: the state changes only while no byte is being forwarded.
//! A forwarding task keeps the state borrowed over its (non-blocking) write, and
//! a change waits for that, so that no byte passes once a change is made.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// The state of the line between the clients and the server.
#[derive(Debug, Default)]
pub(super) struct State {
    /// New connections are closed at once.
    pub(super) cut: bool,
    /// How often the line has been cut: a connection made under another number
    /// than this has been cut, even if the line has been restored since.
    pub(super) cuts: u64,
    /// Nothing is forwarded, nothing closed.
    pub(super) stalled: bool,
    /// How long bytes are held, each way.
    pub(super) delay: Duration,
    /// How many connections have been made since the last cut and not ended.
    pub(super) open: usize,
}

/// The line as all tasks of a proxy share it.
#[derive(Debug)]
pub(super) struct Link {
    state: watch::Sender<State>,
    round_trips: AtomicU64,
}

impl Link {
    pub(super) fn new() -> Self {
        Self { state: watch::Sender::new(State::default()), round_trips: AtomicU64::new(0) }
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    pub(super) fn round_trips(&self) -> u64 {
        self.round_trips.load(Ordering::SeqCst)
    }

    pub(super) fn reset(&self) {
        self.round_trips.store(0, Ordering::SeqCst);
    }

    pub(super) fn connections(&self) -> usize {
        self.state.borrow().open
    }

    /// Enters a connection, unless the line is cut.
    pub(super) fn open(&self) -> Option<OpenConnection<'_>> {
        let mut cuts = None;
        // Nobody waits for this part of the state, so nobody is woken.
        self.state.send_if_modified(|state| {
            if !state.cut {
                state.open += 1;
                cuts = Some(state.cuts);
            }
            false
        });
        Some(OpenConnection { link: self, cuts: cuts?, client_spoke_last: AtomicBool::new(false) })
    }
}

/// One connection through the line, counted as long as it lives.
#[derive(Debug)]
pub(super) struct OpenConnection<'a> {
    link: &'a Link,
    cuts: u64,
    client_spoke_last: AtomicBool,
}

impl OpenConnection<'_> {
    /// The client sent bytes.
    pub(super) fn client_spoke(&self) {
        if !self.client_spoke_last.swap(true, Ordering::SeqCst) {
            self.link.round_trips.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// The client is being given the server's bytes.
    pub(super) fn server_spoke(&self) {
        self.client_spoke_last.store(false, Ordering::SeqCst);
    }

    /// How long bytes that arrive now are held.
    pub(super) fn delay(&self) -> Duration {
        self.link.state.borrow().delay
    }

    /// Waits until this connection is cut.
    pub(super) async fn cut(&self) {
        let mut state = self.link.state.subscribe();
        // Fails only when the sender is gone, which `self.link` keeps.
        let _ = state.wait_for(|state| state.cuts != self.cuts).await;
    }

    /// Waits until this connection forwards; once it is cut, forever.
    pub(super) async fn flowing(&self) {
        let mut state = self.link.state.subscribe();
        // Fails only when the sender is gone, which `self.link` keeps.
        let _ = state.wait_for(|state| self.flows(state)).await;
    }

    /// Does `forward`, which must not block, unless this connection is stalled
    /// or cut; neither can begin while it runs.
    pub(super) fn if_flowing<T>(&self, forward: impl FnOnce() -> T) -> Option<T> {
        let state = self.link.state.borrow();
        self.flows(&state).then(forward)
    }

    fn flows(&self, state: &State) -> bool {
        !state.stalled && state.cuts == self.cuts
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.link.state.send_if_modified(|state| {
            // A cut has already taken its connections off the count.
            if state.cuts == self.cuts {
                state.open -= 1;
            }
            false
        });
    }
}
