//! Ends turns that last too long.
//!
//! A call runs in the task of its caller, and nothing makes a caller poll it: a call can be kept
//! in a `select!` whose other branch awaits a second call on the same key, or its `perform` can
//! await a spawned call on that key. Such a call would keep its turn for ever. So once a call has to
//! wait, a task looks after all turns of the executor, until no call holds a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::group::Coalescer;

/// How often the task looks. A turn may last longer than its bound by this time.
const PAUSE: Duration = Duration::from_millis(20);

impl Coalescer {
    /// Starts the task unless it runs. It ends by itself when no key is in use.
    pub(super) fn watch_turns(self: &Arc<Self>) {
        if !self.is_watched.load(Ordering::Relaxed) && !self.is_watched.swap(true, Ordering::SeqCst)
        {
            tokio::spawn(watch(self.clone()));
        }
    }
}

async fn watch(coalescer: Arc<Coalescer>) {
    loop {
        end_late_turns(&coalescer).await;
        // A call may have entered a queue meanwhile and seen that the task still ran.
        let is_idle = coalescer.queues.holders().is_empty();
        if is_idle || coalescer.is_watched.swap(true, Ordering::SeqCst) {
            return;
        }
    }
}

/// Ends late turns until no key is in use.
async fn end_late_turns(coalescer: &Coalescer) {
    let _watching = Watching(&coalescer.is_watched);
    loop {
        tokio::time::sleep(PAUSE).await;
        let turns = coalescer.queues.holders();
        if turns.is_empty() {
            return;
        }
        let now = Instant::now();
        turns.iter().for_each(|turn| turn.end_if_late(now));
    }
}

/// Lets another task be started when this one ends, also together with its runtime.
struct Watching<'a>(&'a AtomicBool);

impl Drop for Watching<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}
