//! A remote call: a request to another system that is sent at most once, or again with the same key.
//!
//! ```text
//!  no row, NOT_DONE --- commit ---> SENT --- an outcome -------------> DONE
//!                                    | ---- failed, no effect -------> NOT_DONE
//!                                    | ---- failed, or its run ended -> IN_DOUBT
//!  IN_DOUBT --- it happened: `reconcile` or an operator says so -----> DONE
//!           --- it did not: an operator says so ---------------------> NOT_DONE
//!           --- it did not: `reconcile` says so --- commit ----------> SENT
//!           --- the other system recognises the key --- commit ------> SENT
//!  DONE --- an operator knows another outcome -----------------------> DONE
//! ```

use std::future::{Future, IntoFuture};
use std::pin::Pin;

use ekbatan_core::__private::checked_json;
use ekbatan_core::domain::Stored;
use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use crate::error::BoxError;
use crate::failure;
use crate::remote::call::{RemoteCall, RemoteCallState};
use crate::remote::error::{RemoteCallError, RemoteFailure};
use crate::remote::store::RemoteStore;

/// The longest name of a remote call, in bytes.
const MAX_NAME: usize = 255;

type BoxFuture<'h, T> = Pin<Box<dyn Future<Output = T> + Send + 'h>>;
type SendRequest<'h, T> =
    Box<dyn FnOnce(Uuid) -> BoxFuture<'h, Result<T, RemoteFailure>> + Send + 'h>;
type Reconcile<'h, T> =
    Box<dyn FnOnce(Uuid) -> BoxFuture<'h, Result<Reconciled<T>, BoxError>> + Send + 'h>;

/// What another system says of a call that is in doubt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// The call happened, and this is its outcome.
    Happened(T),
    /// The call did not happen, and an earlier request cannot make it happen any more. It is sent now.
    DidNotHappen,
    /// The other system does not know. The call stays in doubt.
    Unknown,
}

/// A [remote call](crate::HandlerContext::remote_call) that is made when it is awaited: at most once,
/// unless it is [idempotent](Self::idempotent).
#[must_use = "a remote call is not made until it is awaited"]
pub struct RemoteRequest<'h, T> {
    call: PreparedCall<'h, T>,
    run: RunOfRequest<'h>,
}

/// The run of a handler, as a remote call sees and changes it.
pub(crate) struct RunOfRequest<'h> {
    /// Whether the delivery is marked as handled.
    pub(crate) is_handled: bool,
    /// Whether the delivery turned out to be another node's.
    pub(crate) lost: &'h mut bool,
    /// Whether only an operator can settle what is in doubt.
    pub(crate) needs_operator: &'h mut bool,
}

/// What a remote call does.
struct PreparedCall<'h, T> {
    store: RemoteStore<'h>,
    name: &'h str,
    send: SendRequest<'h, T>,
    reconcile: Option<Reconcile<'h, T>>,
    is_idempotent: bool,
}

impl<'h, T> RemoteRequest<'h, T> {
    pub(crate) fn new<F>(
        store: RemoteStore<'h>,
        run: RunOfRequest<'h>,
        name: &'h str,
        send: impl FnOnce(Uuid) -> F + Send + 'h,
    ) -> Self
    where
        F: Future<Output = Result<T, RemoteFailure>> + Send + 'h,
    {
        let send: SendRequest<'h, T> = Box::new(move |key| Box::pin(send(key)));
        let call = PreparedCall { store, name, send, reconcile: None, is_idempotent: false };
        Self { call, run }
    }

    /// Says that the other system recognises the key, and does the same only once. A call in doubt is
    /// then sent again with the same key.
    pub fn idempotent(mut self) -> Self {
        self.call.is_idempotent = true;
        self
    }

    /// Sets how to ask the other system whether a call in doubt happened. It gets the key. While it
    /// fails or answers [`Reconciled::Unknown`], the event fails, and is tried again as others are.
    pub fn reconcile<F>(mut self, ask: impl FnOnce(Uuid) -> F + Send + 'h) -> Self
    where
        F: Future<Output = Result<Reconciled<T>, BoxError>> + Send + 'h,
    {
        self.call.reconcile = Some(Box::new(move |key| Box::pin(ask(key))));
        self
    }
}

impl<'h, T> IntoFuture for RemoteRequest<'h, T>
where
    T: Serialize + DeserializeOwned + Send + 'h,
{
    type Output = Result<T, RemoteCallError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'h>>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { call, run } = self;
        Box::pin(async move {
            if run.is_handled {
                let handler = call.store.handler.to_owned();
                return Err(RemoteCallError::Finished { handler });
            }
            let can_ask = call.reconcile.is_some();
            let answer = call.make().await;
            match &answer {
                Err(RemoteCallError::DeliveryLost { .. }) => *run.lost = true,
                Err(RemoteCallError::InDoubt { .. }) => *run.needs_operator |= !can_ask,
                _ => {}
            }
            answer
        })
    }
}

impl<'h, T> PreparedCall<'h, T>
where
    T: Serialize + DeserializeOwned + Send + 'h,
{
    async fn make(mut self) -> Result<T, RemoteCallError> {
        let name = self.name;
        if name.is_empty() || name.len() > MAX_NAME || name.contains('\0') {
            return Err(RemoteCallError::Name { bytes: name.len() });
        }
        let before = match self.store.find(name).await? {
            Some(row) if row.state == RemoteCallState::Done => return self.stored_outcome(&row),
            Some(row) if row.is_unsettled() => {
                let (row, happened) = self.resolve(row).await?;
                if let Some(outcome) = happened {
                    return Ok(outcome);
                }
                Some(row)
            }
            before => before,
        };
        let row = self.store.send(name, before).await?;
        let answer = (self.send)(row.id.uuid()).await;
        let (store, now) = (self.store, self.store.clock.now());
        match answer {
            Ok(outcome) => {
                let text = match checked_json(&outcome) {
                    Ok(text) => text,
                    Err(source) => {
                        let why = format!("it has an outcome that cannot be stored: {source}");
                        store.change(row, |row| row.doubt(why)).await?;
                        return Err(RemoteCallError::Outcome { name: name.to_owned(), source });
                    }
                };
                store.end(row, |row| row.happened(text.clone(), now)).await?;
                Ok(outcome)
            }
            Err(RemoteFailure::NotDone(source)) => {
                let why = failure::of_error(&*source);
                store.end(row, |row| row.did_not_happen(why.clone(), now)).await?;
                Err(RemoteCallError::Failed { name: name.to_owned(), source })
            }
            Err(RemoteFailure::InDoubt(source)) => {
                let why = failure::of_error(&*source);
                let row = store.change(row, |row| row.doubt(why)).await?;
                if self.is_idempotent {
                    return Err(RemoteCallError::Failed { name: name.to_owned(), source });
                }
                Err(in_doubt(&row, None))
            }
        }
    }

    /// Finds out whether a call happened that an earlier run has sent. Without an outcome, the request
    /// is to be sent again.
    async fn resolve(
        &mut self,
        row: Stored<RemoteCall>,
    ) -> Result<(Stored<RemoteCall>, Option<T>), RemoteCallError> {
        let reconcile = self.reconcile.take();
        if self.is_idempotent && reconcile.is_none() {
            return Ok((row, None));
        }
        let delivery = self.store.delivery;
        let is_known = row.delivery == delivery.id.uuid();
        let row = if row.state == RemoteCallState::InDoubt && is_known {
            row
        } else {
            // Who settles the call has the event tried again by the delivery in the row.
            let why = row.error.clone().filter(|_| row.state == RemoteCallState::InDoubt);
            let why = why.unwrap_or_else(|| {
                "the run that sent it ended before it had stored an outcome".to_owned()
            });
            self.store.change(row, |row| row.doubt_again(delivery, why)).await?
        };
        let Some(reconcile) = reconcile else { return Err(in_doubt(&row, None)) };
        let now = self.store.clock.now();
        match reconcile(row.id.uuid()).await {
            Ok(Reconciled::Happened(outcome)) => {
                let text = checked_json(&outcome).map_err(|source| self.unfit(source))?;
                let row = self.store.change(row, |row| row.happened(text, now)).await?;
                Ok((row, Some(outcome)))
            }
            Ok(Reconciled::DidNotHappen) => Ok((row, None)),
            Ok(Reconciled::Unknown) if self.is_idempotent => Ok((row, None)),
            Ok(Reconciled::Unknown) => Err(in_doubt(&row, None)),
            Err(error) => {
                let why = format!("it could not be asked: {}", failure::of_error(&*error));
                Err(in_doubt(&row, Some(why)))
            }
        }
    }

    fn stored_outcome(&self, row: &RemoteCall) -> Result<T, RemoteCallError> {
        let outcome = row.outcome.as_deref().unwrap_or("null");
        serde_json::from_str(outcome).map_err(|source| self.unfit(source))
    }

    fn unfit(&self, source: serde_json::Error) -> RemoteCallError {
        RemoteCallError::Outcome { name: self.name.to_owned(), source }
    }
}

/// The error of a call in doubt, for which an operator has to look if nothing else settles it.
fn in_doubt(row: &RemoteCall, why: Option<String>) -> RemoteCallError {
    let why = why.or_else(|| row.error.clone()).unwrap_or_default();
    tracing::error!(handler = %row.handler, name = %row.name, key = %row.id, why, "whether a remote call happened is not known");
    RemoteCallError::InDoubt {
        name: row.name.clone(),
        handler: row.handler.clone(),
        key: row.id.uuid(),
        why,
    }
}

impl<T> std::fmt::Debug for RemoteRequest<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RemoteRequest").field("name", &self.call.name).finish_non_exhaustive()
    }
}
