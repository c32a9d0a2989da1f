//! What an operator does with remote calls that are in doubt, or that have a wrong outcome.

use ekbatan_core::__private::deliveries::DeliveryState;
use ekbatan_core::domain::{Id, Stored};
use ekbatan_core::repository::{Direction, PageRequest};
use serde_json::Value as Json;
use uuid::Uuid;

use crate::error::EventsError;
use crate::intervention::{InterventionKind, Operator};
use crate::operations::deliveries::DeliveryOperations;
use crate::remote::call::{RemoteCall, RemoteCallState};

/// What an operator says of a remote call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SettledAs {
    Happened,
    DidNotHappen,
}

impl DeliveryOperations {
    /// Remote calls of which it is not known whether they happened, the oldest first, at most `most`.
    /// Those in the state [`Sent`](RemoteCallState::Sent) are under way, or their process has ended
    /// and no run of the handler has come to them since.
    pub async fn unsettled_remote_calls(
        &self,
        most: usize,
    ) -> Result<Vec<Stored<RemoteCall>>, EventsError> {
        let states = [RemoteCallState::InDoubt, RemoteCallState::Sent];
        let request = PageRequest::first(most).filter(RemoteCall::STATE.is_in(states));
        let request = request.order_by(RemoteCall::SENT, Direction::Ascending);
        Ok(self.remote_calls.page(request).await?.at_most(most))
    }

    /// The remote call with this key.
    pub async fn remote_call(&self, key: Uuid) -> Result<Option<Stored<RemoteCall>>, EventsError> {
        Ok(self.remote_calls.find(Id::from_uuid(key)).await?)
    }

    /// Settles a remote call: it happened, and this is its outcome, as the handler would have got it. If
    /// its event is parked, it is tried again. Refused while a run has the event.
    ///
    /// While the event waits or is parked, this also replaces an outcome that is stored, such as one that the handler
    /// cannot read.
    pub async fn remote_call_happened(
        &self,
        key: Uuid,
        outcome: &Json,
        who: &str,
        why: &str,
    ) -> Result<(), EventsError> {
        let (outcome, now) = (outcome.to_string(), self.databases.clock().now());
        let settle = |row: &mut RemoteCall| row.happened(outcome.clone(), now);
        self.settle_remote_call(key, settle, SettledAs::Happened, who, why).await
    }

    /// Settles a remote call: it did not happen, and an earlier request cannot make it happen any more.
    /// The handler makes it when it runs again. If its event is parked, it is tried again. Refused while a
    /// run has the event.
    pub async fn remote_call_did_not_happen(
        &self,
        key: Uuid,
        who: &str,
        why: &str,
    ) -> Result<(), EventsError> {
        let (error, now) = (why.to_owned(), self.databases.clock().now());
        let settle = |row: &mut RemoteCall| row.did_not_happen(error.clone(), now);
        self.settle_remote_call(key, settle, SettledAs::DidNotHappen, who, why).await
    }

    async fn settle_remote_call(
        &self,
        key: Uuid,
        settle: impl Fn(&mut RemoteCall),
        settled_as: SettledAs,
        who: &str,
        why: &str,
    ) -> Result<(), EventsError> {
        let operator = Operator::new(who, why)?;
        loop {
            let missing = || {
                self.not_found(
                    "remote call",
                    key,
                    "in doubt, or with an outcome that can still be replaced",
                )
            };
            let row = self.remote_call(key).await?.ok_or_else(missing)?;
            let delivery = self.deliveries.find(Id::from_uuid(row.delivery)).await?;
            // What an event was handled with stays.
            let is_replaced = row.state == RemoteCallState::Done && delivery.is_some();
            let may_settle =
                row.is_unsettled() || (is_replaced && settled_as == SettledAs::Happened);
            if !may_settle {
                return Err(missing());
            }
            let subject = match settled_as {
                SettledAs::Happened if is_replaced => {
                    format!("{key} happened, with another outcome")
                }
                SettledAs::Happened => format!("{key} happened"),
                SettledAs::DidNotHappen => format!("{key} did not happen"),
            };
            let state = delivery.as_ref().map(|delivery| delivery.state);
            // Also if it is in doubt: the run has read that, and may have its event parked afterwards.
            if state == Some(DeliveryState::Claimed) {
                let why =
                    "is the key of a remote call that is under way; wait until its run has ended";
                return Err(EventsError::Unfit { what: "key", why: why.to_owned() });
            }
            let now = self.databases.clock().now();
            let kind = InterventionKind::Settle;
            let intervention = operator.did(kind, &row.handler, subject, now);
            let mut calls = self.remote_calls.clone();
            if let Some(delivery) = &delivery {
                // No run begins meanwhile.
                calls = calls.expecting(delivery)?;
            }
            let (parked, change) = (row.delivery, row.apply(&settle));
            let settling = |transaction| async move {
                calls.within(&transaction).update(change).await?;
                self.interventions.within(&transaction).add(intervention).await?;
                Ok::<_, EventsError>(())
            };
            let settled = self.shard.transactions().in_transaction(settling).await;
            match settled.map_err(EventsError::from) {
                // A run has begun, or the call is settled.
                Err(error) if error.is_stale() => continue,
                settled => settled?,
            }
            if state != Some(DeliveryState::Parked) {
                return Ok(());
            }
            return match self.retry(parked, who, why).await {
                // Another operator may have retried or skipped it.
                Ok(()) | Err(EventsError::NotFound { .. }) => Ok(()),
                Err(error) => {
                    let source = Box::new(error);
                    Err(EventsError::NotRetried { key, delivery: parked, source })
                }
            };
        }
    }
}
