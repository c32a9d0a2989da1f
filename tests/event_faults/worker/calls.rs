//! The enqueued calls that a worker runs.

use std::sync::Arc;
use std::time::Duration;

use ekbatan::prelude::*;

use super::HeldRun;
use super::handlers::{Failure, Runs};
use crate::requests::{Manner, Serve, Serving};

/// [`Serve`], with failures at random.
pub struct FailingServe {
    pub runs: Arc<Runs>,
    pub serve: Serve,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("{0}")]
    OnPurpose(Failure),
}

impl Action for FailingServe {
    const NAME: &'static str = Serve::NAME;
    type Params = Serving;
    type Output = ();
    type Error = ServeError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        serving: &Serving,
    ) -> Result<(), ServeError> {
        self.runs.meet_fate().await.map_err(ServeError::OnPurpose)?;
        self.serve.perform(ctx, serving).await?;
        match serving.manner {
            // The next commits of its account may cancel it meanwhile.
            Manner::Cancellable if self.runs.random(2) == 0 => {
                tokio::time::sleep(Duration::from_micros(self.runs.random(20_000))).await;
            }
            Manner::Cancellable => {}
            _ => {
                let (request, shard) = (serving.request.to_string(), serving.shard);
                self.runs.wait_if_held(HeldRun::Call { request, shard }).await;
            }
        }
        Ok(())
    }
}
