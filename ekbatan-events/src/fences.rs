//! Keeps lost nodes from sending, before others get what they had claimed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::__private::deliveries::Subscriptions;
use ekbatan_core::domain::ShardIdentifier;
use futures_util::future::{join_all, try_join_all};
use uuid::Uuid;

use crate::failure;
use crate::handler_set::{Handler, HandlerSet, kept_name};
use crate::relay::RelaySender;

/// The time after which a fence is tried again at the next heartbeat.
const LONGEST: Duration = Duration::from_secs(2);

/// The relays of a shard whose brokers can keep a node from sending.
pub(crate) struct Fences {
    pub(crate) handlers: HandlerSet,
    pub(crate) subscriptions: Option<Arc<Subscriptions>>,
}

impl Fences {
    /// The stored names of all of them, also of those that other processes have.
    pub(crate) fn names(&self) -> Vec<String> {
        let Some(subscriptions) = &self.subscriptions else { return Vec::new() };
        let fenced = subscriptions.fenced().map(str::to_owned);
        // Deliveries under an earlier name are fenced, too.
        let earlier = self.known().flat_map(|handler| handler.names());
        let names: HashSet<String> = fenced.chain(earlier).collect();
        names.into_iter().collect()
    }

    /// Those that this node sends by. One that only commits may not reach the broker.
    pub(crate) fn known(&self) -> impl Iterator<Item = &Handler> {
        let is_fenced = |handler: &&Arc<Handler>| {
            let subscriptions = self.subscriptions.as_deref();
            !handler.is_paused()
                && subscriptions.is_some_and(|all| all.fenced().any(|name| name == handler.name))
        };
        self.handlers.iter().filter(is_fenced).map(|handler| &**handler)
    }

    /// Fences nodes. Returns those that can send nothing more.
    pub(crate) async fn fence(
        &self,
        relay: &Handler,
        shard: ShardIdentifier,
        lost: HashSet<Uuid>,
    ) -> HashSet<Uuid> {
        // A lost node of another version of the program may have sent under another of the names.
        let names: Vec<&'static str> = self.names().iter().map(|name| kept_name(name)).collect();
        let names = &names;
        let fences = lost.into_iter().map(|node| async move {
            let inner = relay.relay()?;
            let fencing = names.iter().map(|name| inner.fence(RelaySender::new(name, shard, node)));
            let why = match tokio::time::timeout(LONGEST, try_join_all(fencing)).await {
                Ok(Ok(_)) => return Some(node),
                Ok(Err(error)) => failure::of_error(&*error),
                Err(_) => format!("no answer within {LONGEST:?}"),
            };
            tracing::warn!(relay = relay.name, %node, error = why, "the broker could not be told that a node is lost; trying again");
            None
        });
        join_all(fences).await.into_iter().flatten().collect()
    }
}
