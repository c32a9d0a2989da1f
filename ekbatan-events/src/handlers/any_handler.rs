//! Handlers and relays without their types.

use async_trait::async_trait;
use ekbatan_core::__private::deliveries::StoredEvent;
use ekbatan_core::__private::read_params;
use ekbatan_core::action::Action;
use ekbatan_core::domain::ShardIdentifier;

use crate::decode::DecodeError;
use crate::error::BoxError;
use crate::relay::{EventRelay, RelayError, RelaySender, RelayTerms, SentEvent, UndecodedEvent};
use crate::{Delivered, EventHandler, HandledEvent, HandlerContext};

/// A handler whose events are decoded within.
#[async_trait]
pub(crate) trait AnyHandler: Send + Sync {
    /// The type that the application wrote.
    fn type_name(&self) -> &'static str;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: StoredEvent,
        attempt: u32,
        shard: ShardIdentifier,
    ) -> Result<(), BoxError>;
}

#[async_trait]
impl<H: EventHandler> AnyHandler for H {
    fn type_name(&self) -> &'static str {
        std::any::type_name::<H>()
    }

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        mut stored: StoredEvent,
        attempt: u32,
        shard: ShardIdentifier,
    ) -> Result<(), BoxError> {
        let (name, version) = (stored.event_type.clone(), stored.event_version);
        let unreadable = |source| DecodeError::Payload { name: name.clone(), source };
        let payload = std::mem::take(&mut stored.payload);
        let mut payload = serde_json::from_str(&payload).map_err(unreadable)?;
        let present = H::Event::NAMES.iter().find(|known| known.name == name);
        if present.is_some_and(|present| version < present.version) {
            payload = self
                .upcast(&name, version, payload)
                .map_err(|source| DecodeError::Upcast { name: name.clone(), version, source })?;
        }
        let event = H::Event::decode(&name, payload)?;
        let event = Delivered::new(event, stored, attempt, shard);
        EventHandler::handle(self, ctx, &event).await.map_err(Into::into)
    }
}

/// Runs the calls of an action that other actions enqueue.
pub(crate) struct EnqueuedCalls<A>(pub(crate) A);

#[async_trait]
impl<A: Action + 'static> AnyHandler for EnqueuedCalls<A> {
    fn type_name(&self) -> &'static str {
        std::any::type_name::<A>()
    }

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        call: StoredEvent,
        _attempt: u32,
        _shard: ShardIdentifier,
    ) -> Result<(), BoxError> {
        let params = read_params(&call.payload)
            .map_err(|source| DecodeError::Params { action: A::NAME, source })?;
        // The call has the principal of the action that enqueued it.
        ctx.principal = call.principal;
        ctx.finish(&self.0, params).await?;
        Ok(())
    }
}

/// A relay without its type.
#[async_trait]
pub(crate) trait AnyRelay: Send + Sync {
    async fn check(&self, terms: RelayTerms) -> Result<(), RelayError>;
    async fn open(&self, sender: RelaySender) -> Result<(), RelayError>;
    async fn send(&self, sender: RelaySender, events: &[UndecodedEvent]) -> Vec<SentEvent>;
    async fn fence(&self, lost: RelaySender) -> Result<(), RelayError>;
}

#[async_trait]
impl<R: EventRelay> AnyRelay for R {
    async fn check(&self, terms: RelayTerms) -> Result<(), RelayError> {
        EventRelay::check(self, terms).await
    }

    async fn open(&self, sender: RelaySender) -> Result<(), RelayError> {
        EventRelay::open(self, sender).await
    }

    async fn send(&self, sender: RelaySender, events: &[UndecodedEvent]) -> Vec<SentEvent> {
        EventRelay::send(self, sender, events).await
    }

    async fn fence(&self, lost: RelaySender) -> Result<(), RelayError> {
        EventRelay::fence(self, lost).await
    }
}
