//! Deliveries: one row for each event that a handler has not handled yet. They are inserted by the
//! commit that stores the event, and deleted by the commit that has its effect. Nothing here runs
//! by itself; `ekbatan-events` has the nodes that do.

mod backlog;
mod births;
mod claimed_rows;
mod deadlock;
mod delivery;
mod due;
mod free_rows;
mod handled;
mod hub;
mod known_streams;
mod lacking;
mod owner;
mod priority_counts;
mod registry;
mod stored_event;
mod stored_places;
mod subscriptions;
mod sweep;
mod wanted;

pub use backlog::Backlog;
pub use claimed_rows::{Claimant, OfHandlers};
pub use delivery::{Delivery, DeliveryState, EventPlace, remote_call_id};
pub use due::{Due, WantedDue};
pub use hub::{DeliveryHub, Ownership};
pub use known_streams::LONGEST_RUN;
pub use owner::{Arrived, Born, DeliveryOwner, OwnedHandler};
pub use priority_counts::PriorityCounts;
pub use registry::{RegistryState, SubscriptionRegistry};
pub use stored_event::StoredEvent;
pub use stored_places::{PlacesPage, StoredEvents, StoredPlace};
pub use subscriptions::{Subscription, SubscriptionState, Subscriptions};
pub use sweep::{Swept, stream_of};
pub use wanted::{EventKind, Wanted};

pub(crate) use backlog::backlog;
pub(crate) use births::Births;
pub(crate) use claimed_rows::claimed_rows;
pub(crate) use delivery::{NewDelivery, delivery_id};
pub(crate) use due::due;
pub(crate) use free_rows::free_rows;
pub(crate) use handled::{delete_handled, keep_events};
pub(crate) use known_streams::ModelVersion;
pub(crate) use stored_event::stored_events;
pub(crate) use stored_places::stored_places;
pub(crate) use sweep::{is_sweep_due, sweep};
