//! The worker of a key: an [`InlineTask`] that serves the key's queue. It gets the key from the
//! server, hands out leases one after the other, and releases the key when nobody waits.
//!
//! Invariants: whatever the server granted, the worker passes on or releases. A worker that
//! ends before its work, by a panic or with its runtime, is replaced: at once, or by the next
//! caller that wants the key. Its grant is released by the replacement.

mod backoff;
mod contend;
mod extend;
mod hold;
mod server_key;

use std::sync::{Arc, Weak};

use tokio::runtime::Handle;

use self::contend::{Obtained, obtain};
use self::hold::hold;
pub(crate) use self::server_key::HAND_OFF_BITS;
use self::server_key::ServerKey;
use crate::LockError;
use crate::provider::inline_task::InlineTask;
use crate::provider::key_queue::KeyQueue;
use crate::provider::state::ProviderState;
use crate::provider::telemetry::increment;

/// Starts the worker of a queue that was claimed for it. It works in place until it has to wait.
pub(crate) fn start(provider: Arc<ProviderState>, queue: Arc<KeyQueue>) {
    worker(provider, queue).poll_after(|| ());
}

fn worker(provider: Arc<ProviderState>, queue: Arc<KeyQueue>) -> Arc<InlineTask> {
    let watch = WatchedWorker { provider, queue, began: false, finished: false };
    InlineTask::new(|task| {
        let task = task.clone();
        async move {
            // The closure would capture its fields one by one, and copy the flags.
            let mut watch = watch;
            watch.began = true;
            serve(&watch.provider, &watch.queue, task).await;
            watch.finished = true;
        }
    })
}

/// Resolves when no queue is left. Replaces workers that end before their work.
pub(crate) async fn all_done(provider: &Arc<ProviderState>) {
    loop {
        let removed = provider.removed();
        let open = provider.open();
        if open.is_empty() {
            return;
        }
        for queue in open {
            if queue.claim_worker() {
                start(provider.clone(), queue);
            }
        }
        removed.await;
    }
}

/// Notices when a worker ends before its work.
struct WatchedWorker {
    provider: Arc<ProviderState>,
    queue: Arc<KeyQueue>,
    began: bool,
    finished: bool,
}

impl Drop for WatchedWorker {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let (provider, queue) = (&self.provider, &self.queue);
        tracing::error!(key = %queue.key(), "the worker of a lock has ended before its work; it is replaced");
        if queue.lose_worker() {
            increment(&provider.counts.lost);
        }
        provider.worker_gone(queue);
        // A runtime that shuts down drops new tasks before they begin: then the next caller
        // starts the worker.
        if self.began && Handle::try_current().is_ok() && queue.claim_worker() {
            worker(provider.clone(), queue.clone()).schedule();
        }
    }
}

/// Serves a key until nobody waits for it.
async fn serve(provider: &Arc<ProviderState>, queue: &Arc<KeyQueue>, task: Weak<InlineTask>) {
    let mut server = ServerKey::new(provider.clone(), queue.clone(), task);
    let mut granted = None;
    loop {
        let Some(waiter) = queue.next() else {
            if let Some(unwanted) = granted.take() {
                server.release(unwanted).await;
            } else if server.is_in_doubt() {
                server.settle_in_the_end().await;
            } else if let Some(turn_ends) = server.other_turn() {
                // The worker must remember another process's turn: a caller that comes now
                // would otherwise start a new worker, which would take the key out of turn.
                tokio::select! {
                    () = tokio::time::sleep_until(turn_ends) => {}
                    () = queue.changed() => {}
                }
            } else if provider.remove_if_empty(queue) {
                return;
            }
            continue;
        };
        queue.begin_contending(waiter.since);
        let obtained = obtain(&mut server, granted.take(), &waiter).await;
        if !matches!(obtained, Ok(Obtained::Granted(_))) {
            queue.stop_contending();
        }
        match obtained {
            Ok(Obtained::Granted(grant)) => granted = hold(&mut server, waiter, grant).await,
            Ok(Obtained::Busy) => drop(waiter.answer.send(Ok(None))),
            Ok(Obtained::NotWanted) => {}
            Err(error) => {
                let failed = || Err(LockError::of(queue.key(), error.repeated()));
                queue.answer_tries(failed);
                drop(waiter.answer.send(Err(LockError::of(queue.key(), error))));
            }
        }
    }
}
