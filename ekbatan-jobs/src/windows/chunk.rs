//! The action that batches a chunk: that of the application, and the count of the window.
//!
//! Invariant: what a chunk stages is committed while the window has as many chunks as its number says. So
//! a chunk is committed once, whoever runs it and however often.

use std::sync::Arc;

use ekbatan_core::action::{Action, ActionContext};
use ekbatan_core::repository::ReadError;

use super::series::{ChunkOutcome, WindowChunk, WindowSeries};
use super::window::WindowChanges;

/// Batches a chunk.
pub(super) struct BatchChunk<S>(pub(super) Arc<S>);

/// Why a chunk was not batched.
#[derive(Debug, thiserror::Error)]
pub(super) enum ChunkError<E: std::error::Error> {
    #[error(transparent)]
    Batch(E),
    #[error(transparent)]
    Read(#[from] ReadError),
}

impl<S: WindowSeries> Action for BatchChunk<S> {
    const NAME: &'static str = <S::Batch as Action>::NAME;
    type Params = WindowChunk;
    type Output = ChunkOutcome;
    type Error = ChunkError<<S::Batch as Action>::Error>;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        chunk: &WindowChunk,
    ) -> Result<ChunkOutcome, Self::Error> {
        // Before the rows: if another run has batched the chunk since, this plan is stale.
        let window = ctx.get(chunk.window).await?;
        if window.clone().batched(chunk.number, 0).is_none() {
            // Another run was faster. The caller looks at the window again.
            return Ok(ChunkOutcome::more(0));
        }
        let outcome = self.0.batch().perform(ctx, chunk).await.map_err(ChunkError::Batch)?;
        // A chunk without rows leaves no trace.
        if outcome.rows > 0
            && let Some(window) = window.batched(chunk.number, outcome.rows)
        {
            ctx.plan().update(window);
        }
        Ok(outcome)
    }
}
