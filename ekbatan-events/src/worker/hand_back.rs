//! The end of a worker: what it still holds is given back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::__private::deliveries::{Arrived, Delivery};
use ekbatan_core::domain::Stored;
use uuid::Uuid;

use crate::claims::look_from::LookFrom;
use crate::claims::poll::Poll;
use crate::claims::round_writes::WriteTerms;
use crate::claims::unheld::Unheld;
use crate::ending::HandedBack;
use crate::handlers::handler_set::HandlerSet;
use crate::worker::shard_worker::{ShardWorker, Work};

/// For how long at most a node that stops gives deliveries back.
const LONGEST_HAND_BACK: Duration = Duration::from_secs(20);

impl ShardWorker {
    /// Cancels what still runs, and gives everything back, if the database answers.
    pub(crate) async fn hand_back(self, mut work: Work) -> HandedBack {
        let (_, blocked) = work.runs.cancel().await;
        let mut waiting: Vec<_> =
            work.streams.take_waiting().into_iter().map(|one| one.delivery).collect();
        let Arrived { born, returned } = self.owner.take();
        waiting.extend(born.into_iter().map(|one| one.delivery).chain(returned));
        let held = work.streams.held();
        let (cancelled, count) = (held.difference(&blocked).count(), waiting.len());
        if !blocked.is_empty() {
            tracing::warn!(shard = %self.runner.shard.identifier(), deliveries = blocked.len(), "handlers block their threads and cannot be cancelled; others take their events over");
        }
        if cancelled + count > 0 {
            tracing::info!(shard = %self.runner.shard.identifier(), cancelled, waiting = count, "a node hands deliveries back");
        }
        let too_late = async {
            tokio::select! {
                () = tokio::time::sleep(LONGEST_HAND_BACK) => {}
                // Others take over from a node that is not renewed.
                () = self.alive.over() => {}
            }
        };
        tokio::select! {
            () = self.give_back_at_end(waiting, blocked) => {}
            () = too_late => {
                tracing::warn!(shard = %self.runner.shard.identifier(), "deliveries were not given back in time; they are taken over later");
            }
        }
        HandedBack { cancelled, waiting: count }
    }

    /// `blocked`: what is still being handled. It is left to those who take over from the node.
    async fn give_back_at_end(&self, waiting: Vec<Stored<Delivery>>, blocked: HashSet<Uuid>) {
        self.release_all(waiting.into_iter().map(|delivery| (delivery, None)).collect()).await;
        // Those whose run was cancelled, by what the database knows of them.
        let Some(node) = *self.identity.borrow() else { return };
        let poll = Poll {
            shard: self.runner.shard.clone(),
            deliveries: self.runner.deliveries.clone(),
            handlers: HandlerSet::default(),
            registrar: self.registrar.clone(),
            hub: self.hub.clone(),
            subscriptions: Arc::default(),
            node,
            held: blocked,
            passed_over: HashMap::new(),
            room: HashMap::new(),
            now: self.runner.clock.now(),
            checks: true,
            unheld: Unheld::of_ending_node(),
            look_from: LookFrom::default(),
            terms: WriteTerms::at_most(LONGEST_HAND_BACK),
            claimed_at_once: self.settings.claimed_at_once,
            swept_at_once: self.settings.swept_at_once,
        };
        if let Err(error) = poll.run().await {
            tracing::warn!(%error, "deliveries were not given back; they are taken over later");
        }
    }
}
