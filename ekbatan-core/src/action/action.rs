//! The trait that users write.

use std::error::Error;
use std::future::Future;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{ActionContext, Contention};
use crate::domain::LockKey;

/// A business operation: it reads state, decides, and stages changes.
///
/// No transaction is open while it runs, and none of its changes is visible before the
/// executor commits its plan. It runs once per attempt, so it may run several times. Its
/// dependencies are its fields.
///
/// Write `perform` as an `async fn`.
pub trait Action: Send + Sync {
    /// The name in the database and in telemetry. Never change it once it is stored.
    const NAME: &'static str;

    /// The parameters. They serialize to a JSON object, which is stored with the events.
    type Params: Serialize + DeserializeOwned + Send + Sync;

    /// The value that a call returns once the plan is committed.
    type Output: Send;

    /// The error with which the action refuses.
    type Error: Error + Send + Sync + 'static;

    /// Reads through the context and stages changes on its plan.
    ///
    /// It may be dropped wherever it awaits, and run again: when the caller goes, after a
    /// conflict, and when it reads a row that many calls change.
    fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Self::Params,
    ) -> impl Future<Output = Result<Self::Output, Self::Error>> + Send;

    /// The keys that a call with these parameters contends for: most often those of the rows
    /// that it changes. A call may set others.
    fn contention_keys(&self, params: &Self::Params) -> Vec<LockKey> {
        let _ = params;
        Vec::new()
    }

    /// How calls deal with others that want the same key, unless the call says otherwise.
    /// `None` means the executor's default.
    fn contention(&self) -> Option<Contention> {
        None
    }
}
