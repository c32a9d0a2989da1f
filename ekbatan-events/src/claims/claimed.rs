//! A delivery that this node claims, and its place among others.

use std::sync::Arc;

use ekbatan_core::__private::deliveries::Delivery;
use ekbatan_core::domain::Stored;
use uuid::Uuid;

use crate::handlers::node_handler::Handler;
use crate::options::Order;
use crate::read_events::ClaimedEvent;

/// A delivery that could be claimed.
pub(crate) type Candidate = (Arc<Handler>, Stored<Delivery>);

/// A delivery that this node has claimed, with its event.
pub(crate) struct Claimed {
    pub(crate) handler: Arc<Handler>,
    pub(crate) delivery: Stored<Delivery>,
    pub(crate) event: ClaimedEvent,
}

impl Claimed {
    /// The stream whose deliveries are handled one after another; `None` without an order.
    pub(crate) fn stream(&self) -> Option<StreamKey> {
        stream_of(&self.handler, &self.delivery)
    }
}

/// A handler and a model.
pub(crate) type StreamKey = (&'static str, Uuid);

pub(crate) fn stream_of(handler: &Handler, delivery: &Delivery) -> Option<StreamKey> {
    (handler.options.order == Order::PerModel).then_some((handler.name, delivery.stream))
}

/// The place of a delivery in its stream. No two deliveries have the same one: an event that operators
/// replay may have several, and what stands behind another one must be known as such.
pub(crate) fn place(delivery: &Delivery) -> (i64, i64, Uuid, Uuid) {
    (delivery.model_version, delivery.event_index, delivery.event_id, delivery.id.uuid())
}
