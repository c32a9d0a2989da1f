//! Tells a shard which events the handlers of this process want.

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Subscription, SubscriptionState, Subscriptions};
use ekbatan_core::db::DbErrorKind;
use ekbatan_core::domain::{Id, New, Stored};
use ekbatan_core::repository::{Repository, WriteError};
use ekbatan_core::shard::{Databases, Shard};
use ekbatan_macros::{Entity, State};
use uuid::Uuid;

use crate::error::EventsError;
use crate::handler_set::HandlerSet;
use crate::options::StartFrom;

/// The one row whose version is the generation of a shard's subscriptions.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.subscription_registry")]
struct Registry {
    id: Id<Registry>,
    state: RegistryState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
enum RegistryState {
    Active,
}

/// The subscriptions of one shard.
#[derive(Clone)]
pub(crate) struct Registrar {
    shard: Shard,
    registry: Repository<Registry>,
    subscriptions: Repository<Subscription>,
}

impl Registrar {
    pub(crate) fn new(databases: &Databases, shard: &Shard) -> Self {
        Self {
            shard: shard.clone(),
            registry: databases.repository().on_shard(shard),
            subscriptions: databases.repository().on_shard(shard),
        }
    }

    /// The present subscriptions.
    pub(crate) async fn read(&self) -> Result<Subscriptions, EventsError> {
        // The generation first: subscriptions that begin after it are left out.
        let registry = self.registry.find(registry_id()).await?;
        let rows = self.subscriptions.find_all().await?;
        let generation = registry.map_or(0, |registry| registry.version());
        Ok(Subscriptions::new(generation, rows.into_iter().map(Stored::into_value)))
    }

    /// The present generation.
    pub(crate) async fn generation(&self) -> Result<i64, EventsError> {
        Ok(self.registry.find(registry_id()).await?.map_or(0, |registry| registry.version()))
    }

    /// Adds the subscriptions that the handlers lack.
    pub(crate) async fn register(
        &self,
        handlers: &HandlerSet,
        now: DateTime<Utc>,
    ) -> Result<Subscriptions, EventsError> {
        loop {
            match self.try_register(handlers, now).await {
                // Another process has registered handlers at the same moment.
                Err(error) if is_conflict(&error) => tokio::task::yield_now().await,
                Err(error) => return Err(error),
                Ok(()) => return self.read().await,
            }
        }
    }

    async fn try_register(
        &self,
        handlers: &HandlerSet,
        now: DateTime<Utc>,
    ) -> Result<(), EventsError> {
        let registry = self.registry.find(registry_id()).await?;
        let present = self.subscriptions.find_all().await?;
        let next = registry.as_ref().map_or(0, |registry| registry.version()) + 1;
        let changes = Changes::of(handlers, present, next, now);
        if changes.new.is_empty() && changes.changed.is_empty() {
            return Ok(());
        }
        let work = |transaction| async move {
            match registry {
                Some(registry) => {
                    self.registry.within(&transaction).update(registry.apply(|_| ())).await?;
                }
                None => {
                    let registry = Registry { id: registry_id(), state: RegistryState::Active };
                    self.registry.within(&transaction).add(New::new(registry, ())).await?;
                }
            }
            let subscriptions = self.subscriptions.within(&transaction);
            let new = changes.new.into_iter().map(|row| New::new(row, ()));
            subscriptions.add_all(new).await?;
            subscriptions.update_all(changes.changed).await?;
            Ok::<_, EventsError>(())
        };
        Ok(self.shard.transactions().in_transaction(work).await?)
    }
}

fn registry_id() -> Id<Registry> {
    Id::from_uuid(Uuid::nil())
}

fn is_conflict(error: &EventsError) -> bool {
    match error {
        EventsError::Write(WriteError::Stale(_)) => true,
        EventsError::Write(WriteError::Database(error)) => matches!(
            error.kind(),
            DbErrorKind::UniqueViolation
                | DbErrorKind::Serialization
                | DbErrorKind::Deadlock
                | DbErrorKind::LockTimeout
        ),
        _ => false,
    }
}

/// What a registration writes.
#[derive(Default)]
struct Changes {
    new: Vec<Subscription>,
    changed: Vec<ekbatan_core::domain::Changed<Subscription>>,
}

impl Changes {
    fn of(
        handlers: &HandlerSet,
        present: Vec<Stored<Subscription>>,
        next: i64,
        now: DateTime<Utc>,
    ) -> Self {
        let mut changes = Self::default();
        for handler in handlers.iter() {
            let from = match handler.options.start_from {
                StartFrom::Beginning => None,
                StartFrom::Now => Some(now),
            };
            for event in &handler.events {
                let of = |name: &str| {
                    present.iter().find(|row| row.handler == name && row.event_type == *event)
                };
                let active = |row: &&Stored<Subscription>| row.state == SubscriptionState::Active;
                // A handler that was renamed goes on where it was: events that have a delivery
                // under the earlier name get no other one.
                let earlier =
                    handler.options.aliases.iter().find_map(|name| of(name).filter(active));
                let (since, since_date) = match earlier {
                    Some(earlier) => (earlier.since, earlier.since_date),
                    None => (next, from),
                };
                match of(handler.name) {
                    Some(row) if row.state == SubscriptionState::Active => {}
                    // The events up to now had their deliveries under this name, and those since
                    // have them under the present one. None may get a second one.
                    Some(retired) if earlier.is_none() => {
                        tracing::error!(handler = %retired.handler, event = %event, "the handler was renamed, and this process knows the earlier name only: it gets no events; the deployment is not complete, or the present name is missing in the aliases");
                    }
                    Some(retired) => changes.changed.push(retired.clone().apply(|row| {
                        (row.state, row.since) = (SubscriptionState::Active, since);
                        row.since_date = since_date;
                    })),
                    None => changes.new.push(Subscription {
                        id: Id::from_uuid(Uuid::now_v7()),
                        handler: handler.name.to_owned(),
                        event_type: event.clone(),
                        since,
                        since_date,
                        state: SubscriptionState::Active,
                    }),
                }
                if let Some(earlier) = earlier {
                    let retire = |row: &mut Subscription| row.state = SubscriptionState::Retired;
                    changes.changed.push(earlier.clone().apply(retire));
                }
            }
        }
        changes
    }
}
