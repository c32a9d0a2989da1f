//! What an application writes: a handler of events.

use std::error::Error;
use std::ops::Deref;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::StoredEvent;
use ekbatan_core::__private::{Mark, step_key};
use ekbatan_core::action::{Action, ActionExecutor, ErrorKind, ExecuteError};
use ekbatan_core::db::ActionId;
use ekbatan_core::domain::ShardIdentifier;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use uuid::Uuid;

use crate::HandledEvent;
use crate::remote::error::RemoteFailure;
use crate::remote::request::{RemoteRequest, RunOfRequest};
use crate::remote::store::RemoteStore;

/// Handles the events of one model.
///
/// ```
/// # use ekbatan_core::action::{Action, ActionContext, ExecuteError};
/// # use ekbatan_macros::Event;
/// # use ekbatan_events::{Delivered, EventHandler, HandlerContext};
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Debug, Clone, Serialize, Deserialize, Event)]
/// # pub enum WalletEvent { #[event(name = "WalletMoneyDeposited")] MoneyDeposited { amount: i64 } }
/// # #[derive(Debug, Serialize, Deserialize)] pub struct Entry { amount: i64 }
/// # pub struct PostEntry;
/// # impl Action for PostEntry {
/// #     const NAME: &'static str = "ledger.post_entry";
/// #     type Params = Entry; type Output = (); type Error = std::convert::Infallible;
/// #     async fn perform(&self, _: &mut ActionContext<'_>, _: &Entry) -> Result<(), Self::Error> { Ok(()) }
/// # }
/// pub struct PostToLedger;
///
/// impl EventHandler for PostToLedger {
///     const NAME: &'static str = "ledger.post";
///     type Event = WalletEvent;
///     type Error = ExecuteError<std::convert::Infallible>;
///
///     async fn handle(
///         &self,
///         ctx: &mut HandlerContext<'_>,
///         event: &Delivered<WalletEvent>,
///     ) -> Result<(), Self::Error> {
///         let WalletEvent::MoneyDeposited { amount } = event.event;
///         // The commit of the action marks the event as handled: it is posted exactly once.
///         ctx.finish(&PostEntry, Entry { amount }).await
///     }
/// }
/// ```
pub trait EventHandler: Send + Sync + 'static {
    /// The stored name. It must never change; see
    /// [`HandlerOptions::alias`](crate::HandlerOptions::alias).
    const NAME: &'static str;
    /// The events.
    type Event: HandledEvent;
    /// Why handling failed. The event is tried again.
    type Error: Into<Box<dyn Error + Send + Sync>>;

    /// Handles an event. `Ok` means that it is handled and never comes again.
    ///
    /// It may run more than once: after an error, a panic or a timeout, and if the process dies
    /// before the event is marked as handled. What it commits by [`HandlerContext::finish`] is
    /// nevertheless in the database once.
    fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<Self::Event>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Converts the payload of an earlier version of an event to the present one. Called if the
    /// stored version is lower than that of the code. An event of a higher version is left to processes that
    /// know it.
    fn upcast(
        &self,
        name: &str,
        version: i32,
        payload: Json,
    ) -> Result<Json, Box<dyn Error + Send + Sync>> {
        let _ = (name, version);
        Ok(payload)
    }
}

/// An event, and what is known of it. Dereferences to the event.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Delivered<E> {
    /// The event.
    pub event: E,
    /// Its own id, by which a receiver outside of the database can recognise a repetition.
    pub id: Uuid,
    /// Its stored name.
    pub name: String,
    /// The version of its payload's shape. The payload that a handler gets has the present one.
    pub version: i32,
    /// The namespace of the application that emitted it.
    pub namespace: String,
    /// The execution that emitted it.
    pub action: ActionId,
    /// The name of the action.
    pub action_name: String,
    /// The model's name.
    pub model_type: String,
    /// The model's id, as text.
    pub model_id: String,
    /// The version of the model after the change; `None` if another program wrote the event.
    pub model_version: Option<i64>,
    /// The time of the event.
    pub date: DateTime<Utc>,
    /// Who called the action.
    pub principal: Option<String>,
    /// The W3C trace context of the call.
    pub trace_parent: Option<String>,
    /// The number of this run, from 1.
    pub attempt: u32,
    /// The shard that stores the event.
    pub shard: ShardIdentifier,
}

impl<E> Deref for Delivered<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.event
    }
}

impl<E> Delivered<E> {
    pub(crate) fn new(event: E, stored: StoredEvent, attempt: u32, shard: ShardIdentifier) -> Self {
        Self {
            event,
            id: stored.id,
            name: stored.event_type,
            version: stored.event_version,
            namespace: stored.namespace,
            action: stored.action,
            action_name: stored.action_name,
            model_type: stored.model_type,
            model_id: stored.model_id,
            model_version: stored.model_version,
            date: stored.date,
            principal: stored.principal,
            trace_parent: stored.trace_parent,
            attempt,
            shard,
        }
    }
}

/// How a handler executes actions.
pub struct HandlerContext<'c> {
    pub(crate) executor: &'c ActionExecutor,
    pub(crate) handler: &'static str,
    /// In whose name actions are executed; `None`: in that of the handler.
    pub(crate) principal: Option<String>,
    pub(crate) trace_parent: Option<String>,
    /// `None` once an action has carried it.
    pub(crate) mark: Option<Mark>,
    /// Whether the delivery turned out to be another node's.
    pub(crate) lost: bool,
    /// The shard that stores the event.
    pub(crate) shard: ShardIdentifier,
    pub(crate) remote: RemoteStore<'c>,
    /// Whether a remote call is in doubt that only an operator can settle.
    pub(crate) needs_operator: bool,
}

impl HandlerContext<'_> {
    /// Executes an action whose commit marks the event as handled: either both are in the database
    /// or neither is. It is the last action of a handler; [`step`](Self::step) executes others
    /// before it.
    ///
    /// The action must write to the shard that stores the event. For another shard use `step`.
    ///
    /// Whatever follows one that answered `Ok` is refused with [`Finished`](ExecuteError::Finished): the event
    /// is handled, so what follows would be lost if the process ended before it. After
    /// [`CommitUnknown`](ExecuteError::CommitUnknown) return the error: the event may be handled, and a step would still
    /// be executed.
    pub async fn finish<A: Action>(
        &mut self,
        action: &A,
        params: A::Params,
    ) -> Result<A::Output, ExecuteError<A::Error>> {
        let Some(mark) = self.mark.clone() else { return Err(self.finished()) };
        let call = self.call(action, params).marking(mark);
        let answer = call.await;
        match &answer {
            Ok(_) => self.mark = None,
            Err(error) => self.lost |= error.kind() == ErrorKind::DeliveryLost,
        }
        answer
    }

    /// Executes an action of which further ones follow, or which writes to another shard. It
    /// commits by itself, once for this name and this event: if the handler runs again, the stored
    /// output is returned. Its key is on the shard that stores the event, so it stays known if shards are added.
    ///
    /// The parameters must be the same in every run: they are compared, as with every
    /// [`idempotency_key`](ekbatan_core::action::Execution::idempotency_key). So take them from the
    /// event, or from what an earlier step returned, and not from rows that may have changed since.
    pub async fn step<A: Action>(
        &mut self,
        name: &str,
        action: &A,
        params: A::Params,
    ) -> Result<A::Output, ExecuteError<A::Error>>
    where
        A::Output: Serialize + DeserializeOwned,
    {
        if self.mark.is_none() {
            return Err(self.finished());
        }
        let key = step_key(self.remote.delivery.id.uuid(), name);
        // In the name under which the event was delivered: a handler that has another name by now finds the
        // steps that it made before.
        let principal = self.principal.as_deref().unwrap_or(&self.remote.delivery.handler);
        // Beside the delivery: a shard that is added must not become the home of the key.
        let call = self.call(action, params).principal(principal).key_on(self.shard);
        call.idempotency_key(key).await
    }

    /// Calls another system, for example to charge a card: at most once for this name and this event,
    /// however often the handler runs, also if the event is replayed.
    ///
    /// `send` sends the request. It gets a key that is the same in every run; send it along, for example
    /// as the header `Idempotency-Key`. Before it is called, a commit stores that the request is sent.
    /// That commit is refused if another node has taken the event over. Afterwards its outcome is
    /// stored, and later runs get it from there. An answer that says no, such as a declined card, is an
    /// outcome, too.
    ///
    /// If the process ends in between, or the request fails in a way that tells nothing, the call is in
    /// doubt, and is not sent again:
    ///
    /// - [`idempotent`](RemoteRequest::idempotent) calls are sent again with the same key. Use it if the
    ///   other system recognises the key.
    /// - [`reconcile`](RemoteRequest::reconcile) asks the other system what happened.
    /// - Without both, the event is parked at once, and an operator settles the call by
    ///   [`DeliveryOperations`](crate::DeliveryOperations::remote_call_happened) or on the command line.
    ///
    /// Take what the request says from the event, or from what a step returned: it must be the same in
    /// every run.
    ///
    /// ```
    /// # use ekbatan_events::{HandlerContext, Reconciled, RemoteCallError};
    /// # use serde::{Deserialize, Serialize};
    /// # use uuid::Uuid;
    /// # #[derive(Serialize, Deserialize)] struct Receipt;
    /// # struct Bank;
    /// # impl Bank {
    /// #     async fn charge(&self, key: Uuid, amount: i64) -> Result<Receipt, std::io::Error> { Ok(Receipt) }
    /// #     async fn find(&self, key: Uuid) -> Result<Option<Receipt>, std::io::Error> { Ok(None) }
    /// # }
    /// # async fn handle(bank: &Bank, ctx: &mut HandlerContext<'_>, amount: i64) -> Result<(), RemoteCallError> {
    /// let receipt = ctx
    ///     .remote_call("charge", |key| async move { Ok(bank.charge(key, amount).await?) })
    ///     .reconcile(|key| async move {
    ///         let found = bank.find(key).await?;
    ///         Ok(found.map_or(Reconciled::Unknown, Reconciled::Happened))
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    pub fn remote_call<'h, T, F>(
        &'h mut self,
        name: &'h str,
        send: impl FnOnce(Uuid) -> F + Send + 'h,
    ) -> RemoteRequest<'h, T>
    where
        F: Future<Output = Result<T, RemoteFailure>> + Send + 'h,
    {
        let run = RunOfRequest {
            is_handled: self.mark.is_none(),
            lost: &mut self.lost,
            needs_operator: &mut self.needs_operator,
        };
        RemoteRequest::new(self.remote, run, name, send)
    }

    /// The executor, for reads: `ctx.executor().databases().repository::<Wallet>()`. What is
    /// executed by it directly is not tied to the event, and repeated if the handler runs again.
    pub fn executor(&self) -> &ActionExecutor {
        self.executor
    }

    /// The error of what follows the last action.
    fn finished<E>(&self) -> ExecuteError<E> {
        ExecuteError::finished(self.handler)
    }

    fn call<'a, A: Action>(
        &'a self,
        action: &'a A,
        params: A::Params,
    ) -> ekbatan_core::action::Execution<'a, A> {
        let principal = self.principal.as_deref().unwrap_or(self.handler);
        let call = self.executor.execute(action, params).principal(principal);
        match &self.trace_parent {
            Some(parent) => call.trace_parent(parent.clone()),
            None => call,
        }
    }
}

impl std::fmt::Debug for HandlerContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandlerContext").field("handler", &self.handler).finish_non_exhaustive()
    }
}
