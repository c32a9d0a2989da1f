//! Effects: what runs after a commit, such as mails, messages and caches.

use std::error::Error;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tracing::Instrument;

use crate::db::Committed;
use crate::error_text::with_causes;

/// Something to do after the commit is known, and only then.
///
/// An effect runs at most once and is not stored: if the process dies before it ran, it is
/// lost. Use an event for anything that must not be lost.
#[async_trait]
pub trait Effect: Send + 'static {
    /// The name under which failures are logged.
    fn name(&self) -> &str;

    /// Runs the effect. A failure is logged and counted; the action stays committed.
    async fn run(self: Box<Self>, committed: Committed)
    -> Result<(), Box<dyn Error + Send + Sync>>;
}

/// A closure as an effect.
pub(super) struct Closure<F> {
    pub(super) name: String,
    pub(super) run: F,
}

#[async_trait]
impl<F, Fut, E> Effect for Closure<F>
where
    F: FnOnce(Committed) -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>> + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    async fn run(
        self: Box<Self>,
        committed: Committed,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        (self.run)(committed).await.map_err(Into::into)
    }
}

/// Runs the effects of an executor's calls and counts the failures.
#[derive(Clone, Default)]
pub(super) struct EffectRunner {
    failures: Arc<AtomicU64>,
}

impl EffectRunner {
    /// Runs effects one after another. A panic is a failure.
    pub(super) async fn run(&self, effects: Vec<Box<dyn Effect>>, committed: Committed) {
        for effect in effects {
            // What it does before it waits, and the text of its error, are the application's, too, and may panic.
            let named = AssertUnwindSafe(|| effect.name().to_owned());
            let name = catch_unwind(named).unwrap_or_else(|_| "an effect".to_owned());
            let committed_here = committed.clone();
            let running = async move {
                effect.run(committed_here).await.map_err(|error| with_causes(&*error))
            };
            let error = match tokio::spawn(running.in_current_span()).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) => error,
                Err(panicked) => panicked.to_string(),
            };
            self.failures.fetch_add(1, Ordering::Relaxed);
            tracing::error!(effect = %name, action.id = %committed.action, error, "an effect failed after its commit");
        }
    }

    /// The number of effects that failed so far.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}
