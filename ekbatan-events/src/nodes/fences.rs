//! Keeps lost nodes from sending, before others get what they had claimed.
//!
//! Invariant: what is released after a fence was claimed before the fence began. A node that is alive after all
//! may open its relay again, and what it claims then needs a further fence.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ekbatan_core::__private::deliveries::Subscriptions;
use ekbatan_core::domain::ShardIdentifier;
use futures_util::FutureExt;
use futures_util::future::try_join_all;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use uuid::Uuid;

use crate::failure;
use crate::handlers::any_handler::AnyRelay;
use crate::handlers::handler_set::HandlerSet;
use crate::handlers::node_handler::{Handler, kept_name};
use crate::relay::{RelayError, RelaySender};

/// How long a heartbeat waits for fences. They go on afterwards.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// The time after which a fence is given up, and tried again at the next heartbeat. A broker that is far away needs
/// many round trips for it.
const LONGEST: Duration = Duration::from_secs(60);

/// The relays of a shard whose brokers can keep a node from sending.
pub(crate) struct Fences {
    pub(crate) handlers: HandlerSet,
    pub(crate) subscriptions: Arc<Subscriptions>,
    pub(crate) tasks: FenceTasks,
}

/// The fences that are under way, by their relays and the lost nodes. They end with the last of its clones.
#[derive(Clone, Default)]
pub(crate) struct FenceTasks(Arc<Mutex<RunningFences>>);

#[derive(Default)]
struct RunningFences(HashMap<(&'static str, Uuid), AbortHandle>);

impl Drop for RunningFences {
    fn drop(&mut self) {
        self.0.values().for_each(AbortHandle::abort);
    }
}

impl FenceTasks {
    /// Begins a task, unless the one before it is under way.
    fn begin(
        &self,
        relay: &'static str,
        node: Uuid,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let mut tasks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.0.retain(|_, task| !task.is_finished());
        tasks.0.entry((relay, node)).or_insert_with(|| tokio::spawn(task).abort_handle());
    }
}

impl Fences {
    /// The stored names of all of them, also of those that other processes have.
    pub(crate) fn names(&self) -> Vec<String> {
        let fenced = self.subscriptions.fenced().map(str::to_owned);
        // Deliveries under an earlier name are fenced, too.
        let earlier = self.known().flat_map(|handler| handler.names());
        let names: HashSet<String> = fenced.chain(earlier).collect();
        names.into_iter().collect()
    }

    /// Those that this node sends by. One that only commits may not reach the broker.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Handler> {
        let is_fenced = |handler: &&Arc<Handler>| {
            !handler.is_paused() && self.subscriptions.fenced().any(|name| name == handler.name)
        };
        self.handlers.iter().filter(is_fenced).map(|handler| &**handler)
    }

    /// Fences a node, and then releases what it had claimed. Returns how many deliveries were released; none
    /// if that takes longer than a heartbeat waits for it, although it goes on.
    pub(crate) async fn release_after(
        &self,
        relay: &Handler,
        shard: ShardIdentifier,
        node: Uuid,
        releasing: impl Future<Output = usize> + Send + 'static,
    ) -> usize {
        let Some(inner) = relay.relay() else { return 0 };
        // A lost node of another version of the program may have sent under another of the names.
        let fence =
            |name: &String| fence(inner.clone(), RelaySender::new(kept_name(name), shard, node));
        let fencing: Vec<_> = self.names().iter().map(fence).collect();
        let (done, released) = oneshot::channel();
        let relay = relay.name;
        self.tasks.begin(relay, node, async move {
            let why = match tokio::time::timeout(LONGEST, try_join_all(fencing)).await {
                Ok(Ok(_)) => match tokio::time::timeout(LONGEST, releasing).await {
                    Ok(released) => {
                        let _ = done.send(released);
                        return;
                    }
                    Err(_) => format!("what it had claimed was not released within {LONGEST:?}"),
                },
                Ok(Err(error)) => failure::of_error(&*error),
                Err(_) => format!("no answer within {LONGEST:?}"),
            };
            tracing::warn!(relay, %node, error = why, "a lost node was not fenced; trying again");
        });
        // The sender goes at once if the fence before this one is still under way.
        match tokio::time::timeout(LONGEST_WAIT, released).await {
            Ok(Ok(released)) => released,
            Ok(Err(_)) | Err(_) => 0,
        }
    }
}

async fn fence(relay: Arc<dyn AnyRelay>, lost: RelaySender) -> Result<(), RelayError> {
    match AssertUnwindSafe(relay.fence(lost)).catch_unwind().await {
        Ok(fenced) => fenced,
        Err(panic) => Err(failure::of_panic(&*panic).into()),
    }
}
