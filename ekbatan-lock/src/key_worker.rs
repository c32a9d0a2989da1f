//! The worker of a key: a task that serves the key's queue. It gets the key from the server,
//! hands out leases one after the other, and releases the key when nobody waits.
//!
//! Invariants: whatever the server granted, the worker passes on or releases.

mod contend;
mod hold;
mod server_key;

use std::sync::Arc;

use self::contend::{Obtained, obtain};
use self::hold::hold;
pub(crate) use self::server_key::HAND_OFF_BITS;
use self::server_key::ServerKey;
use crate::LockError;
use crate::key_queue::KeyQueue;
use crate::provider_state::ProviderState;

/// Serves a key until nobody waits for it.
pub(crate) async fn serve(provider: Arc<ProviderState>, queue: Arc<KeyQueue>) {
    let mut server = ServerKey::new(provider.clone(), queue.clone());
    let mut granted = None;
    loop {
        let Some(waiter) = queue.next() else {
            if let Some(unwanted) = granted.take() {
                server.release(unwanted).await;
            } else if let Some(turn_ends) = server.other_turn() {
                // The worker must remember another process's turn: a caller that comes now
                // would otherwise start a new worker, which would take the key out of turn.
                tokio::select! {
                    () = tokio::time::sleep_until(turn_ends) => {}
                    () = queue.changed() => {}
                }
            } else if provider.remove_if_empty(&queue) {
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
