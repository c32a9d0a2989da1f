//! A task that blocks its thread, as code does that waits without `await`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};

/// Opens the gate when it is dropped.
pub struct ThreadGate {
    _open: mpsc::Sender<()>,
    is_reached: Arc<AtomicBool>,
}

/// The gate, as those see it who wait behind it.
#[derive(Clone)]
pub struct ClosedGate {
    closed: Arc<Mutex<mpsc::Receiver<()>>>,
    is_reached: Arc<AtomicBool>,
}

impl ThreadGate {
    /// A gate that is closed, and what waits behind it.
    pub fn closed() -> (Self, ClosedGate) {
        let (open, closed) = mpsc::channel();
        let is_reached = Arc::new(AtomicBool::new(false));
        let gate = Self { _open: open, is_reached: is_reached.clone() };
        (gate, ClosedGate { closed: Arc::new(Mutex::new(closed)), is_reached })
    }

    /// Whether a task blocks its thread, so that it cannot be cancelled any more.
    pub fn is_reached(&self) -> bool {
        self.is_reached.load(Ordering::SeqCst)
    }
}

impl ClosedGate {
    /// Blocks the thread until the gate opens.
    pub async fn block(self) {
        // A task that this one has woken must not wait behind it on its thread.
        tokio::task::yield_now().await;
        self.is_reached.store(true, Ordering::SeqCst);
        assert!(self.closed.lock().unwrap().recv().is_err(), "nothing is sent");
    }
}
