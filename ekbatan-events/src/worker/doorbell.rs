//! A node's part in the doorbell of a shard: hears that other processes have committed something to
//! handle. It shortens the pause before the next look, and nothing else relies on it.

use ekbatan_core::__private::DoorbellMember;
use ekbatan_core::shard::Shard;

use crate::handlers::handler_set::HandlerSet;
use crate::settings::Settings;

/// Hears of commits of other processes; of none if the settings say so.
pub(crate) struct NodeDoorbell(Option<DoorbellMember>);

impl NodeDoorbell {
    /// A node that handles nothing does not listen. Its process rings nevertheless.
    pub(crate) fn join(shard: &Shard, settings: &Settings, handlers: &HandlerSet) -> Self {
        let listens = settings.handles && handlers.iter().next().is_some();
        Self(settings.doorbell.then(|| shard.join_doorbell(listens)))
    }

    /// Waits until there may be something to handle.
    pub(crate) async fn heard(&mut self) {
        match &mut self.0 {
            Some(member) => member.heard().await,
            None => std::future::pending().await,
        }
    }
}
