//! The trait that users write.

use std::error::Error;
use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ActionContext, Contention};
use crate::domain::LockKey;

/// A business operation: reads state, decides, and stages what is to change.
///
/// No transaction is open while it runs, and nothing that it does is visible before the
/// executor commits its plan. It may run several times: once per attempt. What it needs
/// besides its parameters are its fields.
///
/// Write `perform` as an `async fn`.
pub trait Action: Send + Sync {
    /// The name in the database and in telemetry. Never change it once it is stored.
    const NAME: &'static str;

    /// What it is told. It serializes to a JSON object, which is stored with the events.
    type Params: Serialize + DeserializeOwned + Send + Sync;

    /// What it answers once its plan is committed.
    type Output: Send;

    /// How it refuses.
    type Error: Error + Send + Sync + 'static;

    /// Reads through the context and stages on its plan.
    fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Self::Params,
    ) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;

    /// What a call with these parameters contends for: most often the row that it changes.
    /// A call may name another key.
    fn contention_key(&self, params: &Self::Params) -> Option<LockKey> {
        let _ = params;
        None
    }

    /// How calls deal with others that want the same key, unless the call says otherwise;
    /// `None` leaves it to the executor.
    fn contention(&self) -> Option<Contention> {
        None
    }
}
