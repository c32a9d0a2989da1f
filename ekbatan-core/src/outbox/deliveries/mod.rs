//! Deliveries: one row for each event that a handler has not handled yet. They are inserted by the
//! commit that stores the event, and deleted by the commit that has its effect. Nothing here runs
//! by itself; `ekbatan-events` has the nodes that do.

mod delivery;
mod hub;
mod mark;
mod stored_event;
mod subscriptions;
mod sweep;

pub use delivery::{Delivery, DeliveryState};
pub use hub::DeliveryHub;
pub use mark::Mark;
pub use stored_event::StoredEvent;
pub use subscriptions::{Subscription, SubscriptionState, Subscriptions};
pub use sweep::{SweepError, Swept};

pub(crate) use delivery::NewDelivery;
pub(crate) use stored_event::stored_events;
pub(crate) use sweep::sweep;
