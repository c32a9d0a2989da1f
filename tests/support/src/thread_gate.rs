//! A task that blocks its thread, as code does that waits without `await`.

use std::sync::{Arc, Mutex, mpsc};

/// Opens the gate when it is dropped.
pub struct ThreadGate {
    _open: mpsc::Sender<()>,
}

/// The gate, as those see it who wait behind it.
#[derive(Clone)]
pub struct ClosedGate(Arc<Mutex<mpsc::Receiver<()>>>);

impl ThreadGate {
    /// A gate that is closed, and what waits behind it.
    pub fn closed() -> (Self, ClosedGate) {
        let (open, closed) = mpsc::channel();
        (Self { _open: open }, ClosedGate(Arc::new(Mutex::new(closed))))
    }
}

impl ClosedGate {
    /// Blocks the thread until the gate opens.
    pub async fn block(self) {
        // A task that this one has woken must not wait behind it on its thread.
        tokio::task::yield_now().await;
        assert!(self.0.lock().unwrap().recv().is_err(), "nothing is sent");
    }
}
