//! Tells a shard which events the handlers of this process want.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{
    DeliveryHub, RegistryState, Subscription, SubscriptionRegistry, SubscriptionState,
    Subscriptions, Wanted,
};
use ekbatan_core::db::{DbErrorKind, Transaction};
use ekbatan_core::domain::{Id, New, Stored};
use ekbatan_core::repository::{Repository, WriteError};
use ekbatan_core::shard::{Databases, Shard};
use uuid::Uuid;

use crate::error::EventsError;
use crate::handlers::handler_set::HandlerSet;
use crate::intervention::Intervention;
use crate::nodes::subscription_changes::SubscriptionChanges;

/// The subscriptions of one shard.
#[derive(Clone)]
pub(crate) struct Registrar {
    shard: Shard,
    registry: Repository<SubscriptionRegistry>,
    subscriptions: Repository<Subscription>,
    interventions: Repository<Intervention>,
}

impl Registrar {
    pub(crate) fn new(databases: &Databases, shard: &Shard) -> Self {
        Self {
            shard: shard.clone(),
            registry: databases.repository().on_shard(shard),
            subscriptions: databases.repository().on_shard(shard),
            interventions: databases.repository().on_shard(shard),
        }
    }

    /// All subscriptions, also those of handlers that are retired.
    pub(crate) async fn all(&self) -> Result<Vec<Subscription>, EventsError> {
        let rows = self.subscriptions.find_all().await?;
        Ok(rows.into_iter().map(Stored::into_value).collect())
    }

    /// The present subscriptions.
    pub(crate) async fn read(&self) -> Result<Subscriptions, EventsError> {
        self.read_since(self.versions().await?).await
    }

    /// Reads the subscriptions; `generation` and `states` were read before.
    async fn read_since(
        &self,
        (mut generation, mut states): (i64, i64),
    ) -> Result<Subscriptions, EventsError> {
        loop {
            let rows = self.subscriptions.find_all().await?;
            let present = self.versions().await?;
            // An event with the number of a generation must have the deliveries of that one: what is retired
            // after it was read would be lacking.
            if present.0 == generation {
                let rows = rows.into_iter().map(Stored::into_value);
                // The rows may lack a later change of states, so the number from before them counts.
                return Ok(Subscriptions::new(generation, rows).with_states(states));
            }
            (generation, states) = present;
        }
    }

    /// The present subscriptions, which the process knows from then on. They are read only if it does not know
    /// them yet.
    pub(crate) async fn present(
        &self,
        hub: &DeliveryHub,
    ) -> Result<Arc<Subscriptions>, EventsError> {
        let (shard, versions) = (self.shard.identifier(), self.versions().await?);
        if let Some(known) = hub.of(shard).filter(|known| known.versions() == versions) {
            return Ok(known);
        }
        let present = Arc::new(self.read_since(versions).await?);
        hub.set(shard, present.clone());
        Ok(present)
    }

    /// The present generation, and how often operators have changed the states of subscriptions.
    pub(crate) async fn versions(&self) -> Result<(i64, i64), EventsError> {
        let rows = self
            .registry
            .find_by_ids(&[SubscriptionRegistry::GENERATION, SubscriptionRegistry::STATES])
            .await?;
        let version = |id| rows.iter().find(|row| row.id == id).map_or(0, Stored::version);
        Ok((version(SubscriptionRegistry::GENERATION), version(SubscriptionRegistry::STATES)))
    }

    /// Changes the subscriptions of a handler, and stores who did it. Nodes read them again.
    pub(crate) async fn change(
        &self,
        handler: &str,
        change: impl Fn(&mut Subscription),
        log: impl Fn() -> New<Intervention>,
    ) -> Result<(), EventsError> {
        loop {
            match self.try_change(handler, &change, log()).await {
                // Another process has changed them at the same moment.
                Err(error) if is_conflict(&error) => tokio::task::yield_now().await,
                changed => return changed,
            }
        }
    }

    async fn try_change(
        &self,
        handler: &str,
        change: impl Fn(&mut Subscription),
        log: New<Intervention>,
    ) -> Result<(), EventsError> {
        let states = self.registry.find(SubscriptionRegistry::STATES).await?;
        let rows = self.subscriptions.find_where(Subscription::HANDLER.eq(handler)).await?;
        let changed: Vec<_> = rows.into_iter().map(|row| row.apply(&change)).collect();
        let work = |transaction| async move {
            self.raise(&transaction, states, SubscriptionRegistry::STATES).await?;
            self.subscriptions.within(&transaction).update_all(changed).await?;
            self.interventions.within(&transaction).add(log).await?;
            Ok::<_, EventsError>(())
        };
        Ok(self.shard.transactions().in_transaction(work).await?)
    }

    /// Withdraws the subscriptions of a handler, and stores who did it. This begins a generation, so that a
    /// handler that comes back lacks no event that had its delivery before.
    pub(crate) async fn retire(
        &self,
        handler: &str,
        now: DateTime<Utc>,
        log: impl Fn() -> New<Intervention>,
    ) -> Result<(), EventsError> {
        loop {
            match self.try_retire(handler, now, log()).await {
                // Another process has changed them at the same moment.
                Err(error) if is_conflict(&error) => tokio::task::yield_now().await,
                retired => return retired,
            }
        }
    }

    async fn try_retire(
        &self,
        handler: &str,
        now: DateTime<Utc>,
        log: New<Intervention>,
    ) -> Result<(), EventsError> {
        let registry = self.registry.find(SubscriptionRegistry::GENERATION).await?;
        let next = registry.as_ref().map_or(0, |registry| registry.version()) + 1;
        let rows = self.subscriptions.find_where(Subscription::HANDLER.eq(handler)).await?;
        let withdraw = |row: &mut Subscription| {
            // If the handler comes back, it goes on from here.
            (row.state, row.since_date) = (SubscriptionState::Withdrawn, Some(now));
        };
        let present = rows.into_iter().filter(|row| row.state.is_subscribed());
        let changed: Vec<_> = present.map(|row| row.apply(withdraw)).collect();
        let is_retired = changed.is_empty();
        // An earlier retirement stays: a subscription that has not come back goes by it.
        let new = (!is_retired).then(|| Subscription {
            id: Id::from_uuid(Uuid::now_v7()),
            handler: handler.to_owned(),
            event_type: Wanted::Retired.text(),
            since: next,
            since_date: Some(now),
            state: SubscriptionState::Withdrawn,
        });
        let work = |transaction| async move {
            if !is_retired {
                self.raise(&transaction, registry, SubscriptionRegistry::GENERATION).await?;
            }
            let subscriptions = self.subscriptions.within(&transaction);
            subscriptions.add_all(new.map(|row| New::new(row, ()))).await?;
            subscriptions.update_all(changed).await?;
            self.interventions.within(&transaction).add(log).await?;
            Ok::<_, EventsError>(())
        };
        Ok(self.shard.transactions().in_transaction(work).await?)
    }

    /// Raises the version of a row of the registry by one.
    async fn raise(
        &self,
        transaction: &Transaction,
        row: Option<Stored<SubscriptionRegistry>>,
        id: Id<SubscriptionRegistry>,
    ) -> Result<(), EventsError> {
        let registry = self.registry.within(transaction);
        match row {
            Some(row) => registry.update(row.apply(|_| ())).await?,
            None => {
                let row = SubscriptionRegistry { id, state: RegistryState::Active };
                registry.add(New::new(row, ())).await?
            }
        };
        Ok(())
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
        let registry = self.registry.find(SubscriptionRegistry::GENERATION).await?;
        // An operator who pauses or resumes a handler at the same moment raises this one.
        let states = self.registry.find(SubscriptionRegistry::STATES).await?;
        let present = self.subscriptions.find_all().await?;
        let next = registry.as_ref().map_or(0, |registry| registry.version()) + 1;
        let changes = SubscriptionChanges::of(handlers, present, next, now);
        if changes.new.is_empty() && changes.changed.is_empty() {
            return Ok(());
        }
        let work = |transaction| async move {
            self.raise(&transaction, registry, SubscriptionRegistry::GENERATION).await?;
            self.raise(&transaction, states, SubscriptionRegistry::STATES).await?;
            let subscriptions = self.subscriptions.within(&transaction);
            let new = changes.new.into_iter().map(|row| New::new(row, ()));
            subscriptions.add_all(new).await?;
            subscriptions.update_all(changes.changed).await?;
            Ok::<_, EventsError>(())
        };
        Ok(self.shard.transactions().in_transaction(work).await?)
    }
}

/// Whether another process has changed the same rows, so that they are to be read again. A lock timeout is none:
/// it may come each time, and each of them takes long.
fn is_conflict(error: &EventsError) -> bool {
    match error {
        EventsError::Write(WriteError::Stale(_)) => true,
        EventsError::Write(WriteError::Database(error)) => matches!(
            error.kind(),
            DbErrorKind::UniqueViolation | DbErrorKind::Serialization | DbErrorKind::Deadlock
        ),
        _ => false,
    }
}
