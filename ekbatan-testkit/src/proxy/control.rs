//! The state of a proxy: the requested behaviour, and the counters.
//!
//! Invariants: the state changes only while no byte is being forwarded. A forwarding task
//! borrows the state during its non-blocking write, and a change waits for that borrow,
//! so no byte passes after the change.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

/// The requested behaviour.
#[derive(Debug, Default)]
pub(super) struct ProxyState {
    /// The addresses of the server that new connections lead to.
    pub(super) target: Arc<[SocketAddr]>,
    /// New connections are closed at once.
    pub(super) cut: bool,
    /// The number of cuts so far. A connection that was opened at another number has been
    /// cut, even if the proxy was restored since.
    pub(super) cuts: u64,
    /// Nothing is forwarded, and nothing is closed.
    pub(super) stalled: bool,
    /// How often the connections that were open were silenced. A connection that was opened at
    /// another number carries nothing any more, and is not closed.
    pub(super) silences: u64,
    /// The delay in each direction.
    pub(super) delay: Duration,
    /// The number of connections opened since the last cut and not closed.
    pub(super) open: usize,
}

/// The state, shared by all tasks of a proxy.
#[derive(Debug)]
pub(super) struct ProxyControl {
    state: watch::Sender<ProxyState>,
    round_trips: AtomicU64,
}

impl ProxyControl {
    pub(super) fn new(target: Arc<[SocketAddr]>) -> Self {
        let state = ProxyState { target, ..ProxyState::default() };
        Self { state: watch::Sender::new(state), round_trips: AtomicU64::new(0) }
    }

    pub(super) fn target(&self) -> Arc<[SocketAddr]> {
        Arc::clone(&self.state.borrow().target)
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut ProxyState)) {
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

    /// Registers a connection; `None` if the proxy is cut.
    pub(super) fn open(&self) -> Option<OpenConnection<'_>> {
        let mut opened = None;
        // No task waits for the number of connections, so none is notified.
        self.state.send_if_modified(|state| {
            if !state.cut {
                state.open += 1;
                opened = Some((state.cuts, state.silences));
            }
            false
        });
        let (cuts, silences) = opened?;
        let client_spoke_last = AtomicBool::new(false);
        Some(OpenConnection { control: self, cuts, silences, client_spoke_last })
    }
}

/// One connection through the proxy. It is counted until it is dropped.
#[derive(Debug)]
pub(super) struct OpenConnection<'a> {
    control: &'a ProxyControl,
    cuts: u64,
    silences: u64,
    client_spoke_last: AtomicBool,
}

impl OpenConnection<'_> {
    /// Records that the client sent bytes.
    pub(super) fn client_spoke(&self) {
        if !self.client_spoke_last.swap(true, Ordering::SeqCst) {
            self.control.round_trips.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Records that the client receives bytes of the server.
    pub(super) fn server_spoke(&self) {
        self.client_spoke_last.store(false, Ordering::SeqCst);
    }

    /// The delay for bytes that arrive now.
    pub(super) fn delay(&self) -> Duration {
        self.control.state.borrow().delay
    }

    /// Waits until this connection is cut.
    pub(super) async fn cut(&self) {
        let mut state = self.control.state.subscribe();
        // `wait_for` fails only if the sender is dropped, and `self.control` keeps it.
        let _ = state.wait_for(|state| state.cuts != self.cuts).await;
    }

    /// Waits until this connection may forward. Never returns after a cut.
    pub(super) async fn flowing(&self) {
        let mut state = self.control.state.subscribe();
        // `wait_for` fails only if the sender is dropped, and `self.control` keeps it.
        let _ = state.wait_for(|state| self.flows(state)).await;
    }

    /// Calls `forward`, which must not block, unless this connection is stalled or cut.
    /// Neither can start while `forward` runs.
    pub(super) fn if_flowing<T>(&self, forward: impl FnOnce() -> T) -> Option<T> {
        let state = self.control.state.borrow();
        self.flows(&state).then(forward)
    }

    fn flows(&self, state: &ProxyState) -> bool {
        !state.stalled && state.cuts == self.cuts && state.silences == self.silences
    }
}

impl Drop for OpenConnection<'_> {
    fn drop(&mut self) {
        self.control.state.send_if_modified(|state| {
            // A cut has already reset the count of its connections.
            if state.cuts == self.cuts {
                state.open -= 1;
            }
            false
        });
    }
}
