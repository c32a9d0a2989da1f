//! What happens after a commit: mails, messages, caches.

use std::error::Error;
use std::future::Future;

use async_trait::async_trait;

use crate::db::Committed;

/// Something to do once the commit is known, and only then.
///
/// It runs at most once and is not stored: a process that dies in between forgets it. What
/// must not be forgotten belongs into an event.
#[async_trait]
pub trait Effect: Send + 'static {
    /// What failures are logged under.
    fn name(&self) -> &str;

    /// Does it. A failure is logged and counted, and changes nothing about the action.
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

/// Runs effects one after another and answers how many failed. A panic is a failure.
pub(super) async fn run_all(effects: Vec<Box<dyn Effect>>, committed: Committed) -> u64 {
    let mut failures = 0;
    for effect in effects {
        let name = effect.name().to_owned();
        let error = match tokio::spawn(effect.run(committed.clone())).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(panicked) => panicked.to_string(),
        };
        failures += 1;
        tracing::error!(effect = %name, action.id = %committed.action, error, "an effect failed after its commit");
    }
    failures
}
