//! Reports how far handlers are, as events of `tracing`, every so often.

use std::time::Duration;

use ekbatan_core::shard::{Databases, Shard};
use tokio::sync::watch;

use crate::delivery_status::{DeliveryStatus, status};
use crate::error::EventsError;
use crate::handlers::handler_set::HandlerSet;

/// Reports the handlers of a node on one shard.
pub(crate) struct Gauges {
    pub(crate) databases: Databases,
    pub(crate) shard: Shard,
    pub(crate) handlers: HandlerSet,
    pub(crate) every: Duration,
    pub(crate) leaving: watch::Receiver<bool>,
}

impl Gauges {
    /// Reports until the node leaves.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::select! {
                () = tokio::time::sleep(self.every) => {}
                _ = self.leaving.changed() => return,
            }
            // The database is asked only if somebody wants the answer.
            if !tracing::enabled!(target: "ekbatan_events::gauges", tracing::Level::DEBUG) {
                continue;
            }
            let mut leaving = self.leaving.clone();
            let reporting = tokio::time::timeout(self.every, self.report());
            tokio::select! {
                reported = reporting => {
                    if let Ok(Err(error)) = reported {
                        tracing::debug!(shard = %self.shard.identifier(), %error, "the state of the handlers could not be read; trying again");
                    }
                }
                _ = leaving.changed() => return,
            }
        }
    }

    async fn report(&self) -> Result<(), EventsError> {
        let shard = self.shard.identifier();
        let now = self.databases.clock().now();
        let all = status(&self.databases, &self.shard).await?;
        for handler in self.handlers.iter() {
            // What has come under an earlier name is the handler's, too.
            let names = handler.names();
            let of: Vec<_> = all.iter().filter(|of| names.contains(&of.handler)).collect();
            if of.is_empty() {
                continue;
            }
            let sum =
                |count: fn(&DeliveryStatus) -> u64| of.iter().map(|of| count(of)).sum::<u64>();
            let oldest = of.iter().filter_map(|of| of.oldest).min();
            let age = oldest.map(|oldest| (now - oldest).num_milliseconds().max(0));
            let is_paused = handler.is_paused() || of.iter().any(|of| of.is_paused);
            let counts = handler.counts_of(shard);
            tracing::debug!(
                target: "ekbatan_events::gauges",
                handler = handler.name,
                %shard,
                pending = sum(|of| of.pending),
                failing = sum(|of| of.failing),
                parked = sum(|of| of.parked),
                blocked = sum(|of| of.blocked),
                dead_letters = sum(|of| of.dead_letters),
                in_doubt = sum(|of| of.in_doubt),
                oldest_age_ms = age.unwrap_or_default(),
                paused = is_paused,
                handled = counts.handled,
                failed = counts.failed,
                "ekbatan.event.gauges"
            );
        }
        Ok(())
    }
}
