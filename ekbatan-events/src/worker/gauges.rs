//! Reports how far handlers are, as events of `tracing`, every so often.

use std::time::Duration;

use ekbatan_core::shard::{Databases, Shard};
use tokio::sync::watch;

use crate::delivery_status::status;
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
            let Some(of) = all.iter().find(|of| of.handler == handler.name) else { continue };
            let counts = handler.counts_of(shard);
            let age = of.oldest.map(|oldest| (now - oldest).num_milliseconds().max(0));
            tracing::debug!(
                target: "ekbatan_events::gauges",
                handler = handler.name,
                %shard,
                pending = of.pending,
                failing = of.failing,
                parked = of.parked,
                blocked = of.blocked,
                dead_letters = of.dead_letters,
                in_doubt = of.in_doubt,
                oldest_age_ms = age.unwrap_or_default(),
                paused = of.is_paused || handler.is_paused(),
                handled = counts.handled,
                failed = counts.failed,
                "ekbatan.event.gauges"
            );
        }
        Ok(())
    }
}
