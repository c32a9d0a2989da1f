//! Actions that a test defines with a closure.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};

use ekbatan::action::RetryPolicy;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};

/// The domain error of the actions.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("refused")]
pub struct Refused;

/// The parameters of an action that needs none.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Nothing {}

/// Parameters that distinguish two calls.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Number {
    pub number: i64,
}

/// An action that runs a closure and counts its runs.
pub struct Stage<F, O, P = Nothing> {
    stage: F,
    runs: AtomicU32,
    of: PhantomData<fn() -> (O, P)>,
}

impl<F, O, P> Stage<F, O, P>
where
    F: Fn(&mut ActionContext<'_>, &P) -> Result<O, Refused>,
{
    pub fn with_params(stage: F) -> Self {
        Self { stage, runs: AtomicU32::new(0), of: PhantomData }
    }
}

impl<F, O, P> Stage<F, O, P> {
    pub fn runs(&self) -> u32 {
        self.runs.load(Ordering::SeqCst)
    }
}

impl<F, O, P> Action for Stage<F, O, P>
where
    F: Fn(&mut ActionContext<'_>, &P) -> Result<O, Refused> + Send + Sync,
    O: Send,
    P: Serialize + for<'de> Deserialize<'de> + Send + Sync,
{
    const NAME: &'static str = "conformance.stage";
    type Params = P;
    type Output = O;
    type Error = Refused;

    async fn perform(&self, ctx: &mut ActionContext<'_>, params: &P) -> Result<O, Refused> {
        self.runs.fetch_add(1, Ordering::SeqCst);
        (self.stage)(ctx, params)
    }
}

/// Returns an action without parameters.
pub fn stage<O, F>(
    stage: F,
) -> Stage<impl Fn(&mut ActionContext<'_>, &Nothing) -> Result<O, Refused> + Send + Sync, O>
where
    F: Fn(&mut ActionContext<'_>) -> Result<O, Refused> + Send + Sync,
{
    Stage::with_params(move |ctx: &mut ActionContext<'_>, _: &Nothing| stage(ctx))
}

/// Executes an action without parameters, without retries.
pub async fn run<O: Send>(
    executor: &ActionExecutor,
    work: impl Fn(&mut ActionContext<'_>) -> Result<O, Refused> + Send + Sync,
) -> Result<O, ExecuteError<Refused>> {
    executor.execute(&stage(work), Nothing {}).retry(RetryPolicy::none()).await
}
