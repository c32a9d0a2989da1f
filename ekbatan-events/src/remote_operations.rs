//! What an operator does with remote calls in doubt.

use ekbatan_core::__private::deliveries::DeliveryState;
use ekbatan_core::domain::{Id, Stored};
use ekbatan_core::repository::{Direction, PageRequest};
use serde_json::Value as Json;
use uuid::Uuid;

use crate::error::EventsError;
use crate::intervention::{InterventionKind, Operator};
use crate::operations::DeliveryOperations;
use crate::remote_call::{RemoteCall, RemoteCallState};

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
        Ok(self.remote_calls.page(request).await?.rows)
    }

    /// The remote call with this key.
    pub async fn remote_call(&self, key: Uuid) -> Result<Option<Stored<RemoteCall>>, EventsError> {
        Ok(self.remote_calls.find(Id::from_uuid(key)).await?)
    }

    /// Settles a remote call: it happened, and this is its outcome, as the handler would have got it. If
    /// its event is parked, it is tried again.
    pub async fn remote_call_happened(
        &self,
        key: Uuid,
        outcome: &Json,
        who: &str,
        why: &str,
    ) -> Result<(), EventsError> {
        let (outcome, now) = (outcome.to_string(), self.databases.clock().now());
        let subject = format!("{key} happened");
        self.settle_remote_call(key, |row| row.happened(outcome, now), subject, who, why).await
    }

    /// Settles a remote call: it did not happen, and an earlier request cannot make it happen any more.
    /// The handler makes it when it runs again. If its event is parked, it is tried again.
    pub async fn remote_call_did_not_happen(
        &self,
        key: Uuid,
        who: &str,
        why: &str,
    ) -> Result<(), EventsError> {
        let (error, now) = (why.to_owned(), self.databases.clock().now());
        let subject = format!("{key} did not happen");
        self.settle_remote_call(key, |row| row.did_not_happen(error, now), subject, who, why).await
    }

    async fn settle_remote_call(
        &self,
        key: Uuid,
        settle: impl FnOnce(&mut RemoteCall),
        subject: String,
        who: &str,
        why: &str,
    ) -> Result<(), EventsError> {
        let operator = Operator::new(who, why)?;
        let not_found = || self.not_found("remote call", key, "in doubt");
        let found = self.remote_call(key).await?.filter(|row| row.is_unsettled());
        let row = found.ok_or_else(not_found)?;
        let delivery = self.deliveries.find(Id::from_uuid(row.delivery)).await?;
        let state = delivery.map(|delivery| delivery.state);
        if row.state == RemoteCallState::Sent && state == Some(DeliveryState::Claimed) {
            let why = "is the key of a remote call that is under way; wait until its run has ended";
            return Err(EventsError::Unfit { what: "key", why: why.to_owned() });
        }
        let (kind, now) = (InterventionKind::Settle, self.databases.clock().now());
        let intervention = operator.did(kind, &row.handler, subject, now);
        let delivery = row.delivery;
        let change = row.apply(settle);
        let settling = |transaction| async move {
            self.remote_calls.within(&transaction).update(change).await?;
            self.interventions.within(&transaction).add(intervention).await?;
            Ok::<_, EventsError>(())
        };
        let settled = self.shard.transactions().in_transaction(settling).await;
        self.found("remote call", key, "in doubt", settled)?;
        if state != Some(DeliveryState::Parked) {
            return Ok(());
        }
        match self.retry(delivery, who, why).await {
            // Another operator has retried or skipped it.
            Err(EventsError::NotFound { .. }) => Ok(()),
            retried => retried,
        }
    }
}
