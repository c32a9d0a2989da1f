//! Commits what is known of the remote calls of a run.
//!
//! Invariants:
//! - A request is committed before it is sent, and only if the delivery is still as this run has
//!   claimed it.
//! - The end of a request is stored although the delivery was taken over, unless another request
//!   has begun.

use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::__private::deliveries::Delivery;
use ekbatan_core::clock::Clock;
use ekbatan_core::db::DbErrorKind;
use ekbatan_core::domain::{Entity, Id, New, Stored};
use ekbatan_core::repository::{Repository, WriteError};
use uuid::Uuid;

use crate::error::EventsError;
use crate::remote::call::{RemoteCall, RemoteCallState};
use crate::remote::error::RemoteCallError;

/// The pauses between attempts to store the end of a request.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The remote calls of the run of a handler.
#[derive(Clone, Copy)]
pub(crate) struct RemoteStore<'c> {
    pub(crate) calls: &'c Repository<RemoteCall>,
    pub(crate) delivery: &'c Stored<Delivery>,
    pub(crate) handler: &'static str,
    /// Earlier names of the handler.
    pub(crate) aliases: &'c [String],
    pub(crate) clock: &'c Arc<dyn Clock>,
}

impl RemoteStore<'_> {
    /// The call with this name, if a request was sent before, by any delivery of the event.
    pub(crate) async fn find(
        &self,
        name: &str,
    ) -> Result<Option<Stored<RemoteCall>>, RemoteCallError> {
        let handlers = std::iter::once(self.handler).chain(self.aliases.iter().map(String::as_str));
        let id = |handler| RemoteCall::id_of(self.delivery.event_id, handler, name);
        let ids: Vec<Id<RemoteCall>> = handlers.map(id).collect();
        let found = self.calls.find_by_ids(&ids).await.map_err(EventsError::from)?;
        Ok(found.into_iter().next())
    }

    /// Commits that a request is sent, the first one or a further one.
    pub(crate) async fn send(
        &self,
        name: &str,
        before: Option<Stored<RemoteCall>>,
    ) -> Result<Stored<RemoteCall>, RemoteCallError> {
        let (delivery, request, now) = (self.delivery, Uuid::now_v7(), self.clock.now());
        let calls = self.while_claimed()?;
        let (id, written) = match before {
            None => {
                // By the name of the delivery: a process that knows only that one finds it, too.
                let row = RemoteCall::first_sent(delivery, name, request, now);
                (row.id, calls.add(New::new(row, ())).await)
            }
            Some(row) => {
                let (id, again) =
                    (row.id, |row: &mut RemoteCall| row.send_again(delivery, request, now));
                (id, calls.update(row.apply(again)).await)
            }
        };
        match written {
            Ok(row) => Ok(row),
            Err(error @ WriteError::Unknown(_)) => match self.calls.find(id).await {
                Ok(Some(row)) if row.request == request => Ok(row),
                _ => Err(self.refused(error)),
            },
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Commits a change of a call, if this run still has the delivery.
    pub(crate) async fn change(
        &self,
        row: Stored<RemoteCall>,
        change: impl FnOnce(&mut RemoteCall),
    ) -> Result<Stored<RemoteCall>, RemoteCallError> {
        let changed = self.while_claimed()?.update(row.apply(change)).await;
        changed.map_err(|error| self.refused(error))
    }

    /// Stores how the request of this run ended. Only this run knows it, so it tries until it is
    /// stored or the run ends.
    pub(crate) async fn end(
        &self,
        mut row: Stored<RemoteCall>,
        end: impl Fn(&mut RemoteCall),
    ) -> Result<(), RemoteCallError> {
        let request = row.request;
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.calls.update(row.clone().apply(&end)).await {
                Ok(_) => return Ok(()),
                Err(error) if may_pass(&error) => error,
                Err(error) => return Err(self.refused(error)),
            };
            match self.calls.find(row.id).await {
                // An answer was lost, or an operator has settled it in the same way.
                Ok(Some(present)) if present.state == RemoteCallState::Done => return Ok(()),
                Ok(Some(present)) if present.request == request => row = present,
                Ok(_) => {
                    tracing::error!(handler = self.handler, name = %row.name, key = %row.id, "a remote call ended after another request for it had begun");
                    return Err(self.lost());
                }
                Err(_) => {}
            }
            tracing::warn!(handler = self.handler, name = %row.name, %error, "the end of a remote call could not be stored; trying again");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    pub(crate) fn lost(&self) -> RemoteCallError {
        RemoteCallError::DeliveryLost { handler: self.handler.to_owned() }
    }

    /// Writes that commit only if this run still has the delivery.
    fn while_claimed(&self) -> Result<Repository<RemoteCall>, RemoteCallError> {
        Ok(self.calls.clone().expecting(self.delivery).map_err(EventsError::from)?)
    }

    fn refused(&self, error: WriteError) -> RemoteCallError {
        let is_delivery = |model| model == Delivery::TABLE.model;
        match error {
            WriteError::Stale(rows) if rows.iter().any(|row| is_delivery(row.model)) => self.lost(),
            error => EventsError::from(error).into(),
        }
    }
}

/// Whether the same write may succeed later.
fn may_pass(error: &WriteError) -> bool {
    match error {
        WriteError::Stale(_) | WriteError::Unknown(_) => true,
        WriteError::Database(error) => matches!(
            error.kind(),
            DbErrorKind::Unavailable
                | DbErrorKind::PoolTimeout
                | DbErrorKind::Overloaded
                | DbErrorKind::Deadlock
                | DbErrorKind::Serialization
                | DbErrorKind::LockTimeout
                | DbErrorKind::StatementTimeout
        ),
        _ => false,
    }
}
