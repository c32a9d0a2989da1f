//! The action that batches a chunk: that of the application, and the count of the window.
//!
//! Invariant: what a chunk stages is committed while the window has as many chunks as its number says. So
//! a chunk is committed once, by any node and however often it runs.

use std::sync::Arc;

use ekbatan_core::action::{Action, ActionContext, Contention};
use ekbatan_core::domain::LockKey;
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
    #[error(
        "it has no rows, and is said not to be the last one; answer `ChunkOutcome::last` when no row is left"
    )]
    Fruitless,
    #[error(
        "it has no rows and stages something, which would be committed again if the run is repeated; let a handler of `WindowClosed` do that"
    )]
    WithoutRows,
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
        if outcome.rows == 0 {
            // A last chunk without rows is not counted, so nothing would guard what it stages.
            if ctx.plan().has_writes() {
                return Err(ChunkError::WithoutRows);
            }
            return if outcome.is_last { Ok(outcome) } else { Err(ChunkError::Fruitless) };
        }
        if let Some(window) = window.batched(chunk.number, outcome.rows) {
            ctx.plan().update(window);
        }
        Ok(outcome)
    }

    fn contention_keys(&self, chunk: &WindowChunk) -> Vec<LockKey> {
        self.0.batch().contention_keys(chunk)
    }

    fn contention(&self) -> Option<Contention> {
        self.0.batch().contention()
    }
}
