//! Leases of the server, after which it deletes the keys that are attached to them.
//!
//! Invariants: the numbers of the first leases of an acquisition follow from its owner, or are
//! [remembered](crate::spare_leases) for it, so that they can be revoked when the answer about them was lost. A lease is
//! believed for a shorter time than the server keeps it: it is counted from before the request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ekbatan_lock::BackendError;
use futures_util::{StreamExt, stream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use uuid::Uuid;

use crate::address::ANSWER;
use crate::answer::{CallError, Effect, left};
use crate::client::{Answers, Client};
use crate::messages::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseRequest, LeaseResponse, LeaseRevokeResponse,
};

/// How many leases that are not used any more are remembered. Further ones end by themselves.
const UNUSED: usize = 10_000;

/// How many of them are revoked at a time.
const AT_A_TIME: usize = 16;

/// Time between checks whether the leases have ended that are not used any more.
const CHECK: Duration = Duration::from_millis(10);

pub(crate) struct Leases {
    client: Arc<Client>,
    /// Where leases go that are not used any more, until the locks are closed.
    unused: Mutex<Option<mpsc::Sender<i64>>>,
    revoking: Mutex<JoinHandle<()>>,
}

/// The lease under which an acquisition takes a free key.
pub(crate) fn of_holder(owner: Uuid) -> i64 {
    number(owner.as_u64_pair().0)
}

/// The lease under which an acquisition waits.
pub(crate) fn of_waiter(owner: Uuid) -> i64 {
    number(owner.as_u64_pair().1)
}

/// Half of an owner is random enough. Numbers are positive, and zero is none.
fn number(half: u64) -> i64 {
    i64::try_from(half & (u64::MAX >> 1)).unwrap_or(1).max(1)
}

impl Leases {
    /// Needs a Tokio runtime.
    pub(crate) fn new(client: Arc<Client>) -> Self {
        let (unused, discarded) = mpsc::channel(UNUSED);
        let revoking = tokio::spawn(revoke_all(client.clone(), discarded));
        Self { client, unused: Mutex::new(Some(unused)), revoking: Mutex::new(revoking) }
    }

    /// Has the server begin a lease, or prolong it if there is one of this number. Returns when it
    /// ends, or a little earlier.
    pub(crate) async fn grant(&self, id: i64, seconds: i64) -> Result<Instant, BackendError> {
        let sent = Instant::now();
        let request = LeaseGrantRequest { ttl: seconds, id };
        match self.client.call("/etcdserverpb.Lease/LeaseGrant", request).await {
            Ok(LeaseGrantResponse { ttl }) => Ok(sent + left(ttl)),
            Err(error) if error.is_known_lease() => {
                self.keep_alive(vec![id]).await?.remove(&id).flatten().ok_or_else(|| {
                    BackendError::unavailable("etcd: the lease of a try ended before the try")
                })
            }
            Err(error) => Err(error.of(Effect::None)),
        }
    }

    /// Ends a lease and deletes its keys. A lease that has ended is no error.
    pub(crate) async fn revoke(&self, id: i64) -> Result<(), BackendError> {
        match revoke(&self.client, id).await {
            Err(error) if !error.is_no_lease() => Err(error.of(Effect::Possible)),
            _ => Ok(()),
        }
    }

    /// Ends a lease without keys some time, at the latest when it ends by itself.
    pub(crate) fn discard(&self, id: i64) {
        let unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if id != 0
            && let Some(unused) = &*unused
        {
            // If too many wait, this one ends by itself.
            let _ = unused.try_send(id);
        }
    }

    /// Discards the lease when the guard is dropped, unless it is kept.
    pub(crate) fn discarded_on_drop(&self, id: i64) -> DiscardOnDrop<'_> {
        DiscardOnDrop { leases: self, id }
    }

    /// Prolongs leases by the time that they were granted for. Returns when they end, or `None`
    /// for a lease that has ended.
    pub(crate) async fn keep_alive(
        &self,
        ids: Vec<i64>,
    ) -> Result<HashMap<i64, Option<Instant>>, BackendError> {
        let (sent, count) = (Instant::now(), ids.len());
        let requests = || Some(stream::iter(ids.clone()).map(|id| LeaseRequest { id }));
        let answers = self.client.stream("/etcdserverpb.Lease/LeaseKeepAlive", requests).await;
        let mut answers: Answers<LeaseResponse> =
            answers.map_err(|error| error.of(Effect::None))?;
        let mut found = HashMap::new();
        while found.len() < count {
            let member = || self.client.member().to_owned();
            let answer = match timeout(ANSWER, answers.stream.message()).await {
                Ok(Ok(Some(answer))) => answer,
                Ok(Ok(None)) => break,
                Ok(Err(status)) => return Err(CallError::Status(member(), status).of(Effect::None)),
                Err(_) => return Err(CallError::Silent(member()).of(Effect::None)),
            };
            found.insert(answer.id, (answer.ttl > 0).then(|| sent + left(answer.ttl)));
        }
        Ok(found)
    }

    /// The rest of a lease.
    pub(crate) async fn remaining(&self, id: i64) -> Result<Duration, BackendError> {
        let request = LeaseRequest { id };
        let answer = self.client.call("/etcdserverpb.Lease/LeaseTimeToLive", request).await;
        let answer: LeaseResponse = answer.map_err(|error| error.of(Effect::None))?;
        Ok(left(answer.ttl))
    }

    /// Ends the leases that are not used any more. If that takes long, the others end by themselves.
    pub(crate) async fn close(&self) {
        drop(self.unused.lock().unwrap_or_else(PoisonError::into_inner).take());
        let ended = async {
            while !self.revoking.lock().unwrap_or_else(PoisonError::into_inner).is_finished() {
                sleep(CHECK).await;
            }
        };
        if timeout(ANSWER, ended).await.is_err() {
            self.stop();
        }
    }

    fn stop(&self) {
        self.revoking.lock().unwrap_or_else(PoisonError::into_inner).abort();
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Discards a lease when it is dropped.
pub(crate) struct DiscardOnDrop<'l> {
    leases: &'l Leases,
    id: i64,
}

impl DiscardOnDrop<'_> {
    pub(crate) fn keep(mut self) {
        self.id = 0;
    }
}

impl Drop for DiscardOnDrop<'_> {
    fn drop(&mut self) {
        self.leases.discard(self.id);
    }
}

async fn revoke(client: &Client, id: i64) -> Result<LeaseRevokeResponse, CallError> {
    client.call("/etcdserverpb.Lease/LeaseRevoke", LeaseRequest { id }).await
}

async fn revoke_all(client: Arc<Client>, mut discarded: mpsc::Receiver<i64>) {
    let discarded = stream::poll_fn(move |cx| discarded.poll_recv(cx));
    discarded
        .for_each_concurrent(AT_A_TIME, |id| {
            let client = client.clone();
            async move {
                if let Err(error) = revoke(&client, id).await
                    && !error.is_no_lease()
                {
                    let error = error.of(Effect::None);
                    tracing::debug!(%error, "a lease that is not used any more ends by itself");
                }
            }
        })
        .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_has_two_leases_of_its_own() {
        let owner = Uuid::new_v4();
        assert!(of_holder(owner) > 0 && of_waiter(owner) > 0);
        assert_ne!(of_holder(owner), of_waiter(owner));
        assert_eq!(of_holder(Uuid::nil()), 1);
        assert!(of_holder(Uuid::max()) > 0);
    }
}
