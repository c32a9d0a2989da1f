//! The handler: batches what has come into a window that closes, and closes it.
//!
//! Invariant: rows are batched after the barrier. Every action that has found the window open has
//! committed by then or never does, so what is batched is complete.

use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::domain::ShardedId;
use ekbatan_events::{Delivered, EventHandler, HandlerContext};

use super::chunk::BatchChunk;
use super::error::{SeriesError, WindowError};
use super::finish_closing::{BatchedWindow, FinishClosing};
use super::series::{WindowChunk, WindowSeries};
use super::window::{Window, WindowEvent, WindowState};

/// Batches what has come into the windows of a series, and closes them.
pub(super) struct FinishWindows<S> {
    pub(super) series: Arc<S>,
    /// How long one run waits for open transactions. Then it fails, and says who has them open.
    pub(super) longest_barrier: Duration,
}

impl<S: WindowSeries> EventHandler for FinishWindows<S> {
    const NAME: &'static str = S::NAME;
    type Event = WindowEvent;
    type Error = SeriesError;

    async fn handle(
        &self,
        ctx: &mut HandlerContext<'_>,
        event: &Delivered<WindowEvent>,
    ) -> Result<(), SeriesError> {
        let WindowEvent::Closing { series, key, participant, .. } = &event.event else {
            return Ok(());
        };
        if series != S::NAME {
            return Ok(());
        }
        let window = event.model_id.parse::<ShardedId<Window>>();
        let window = window.map_err(|_| SeriesError::Id(event.model_id.clone()))?;
        let shard = ctx.executor().databases().shard(event.shard)?;
        shard.transaction_barrier(self.longest_barrier).await.map_err(WindowError::from)?;
        let has_batched = self.batch(ctx, window).await?;
        if !has_batched {
            return Ok(());
        }
        let now = shard.database_time().await?;
        let finish = FinishClosing(self.series.clone());
        let finished = ctx.finish(&finish, BatchedWindow { window, now }).await;
        finished.map_err(|error| SeriesError::Finish(error.into()))?;
        tracing::info!(series, window = %key, participant, "a window is closed");
        Ok(())
    }
}

impl<S: WindowSeries> FinishWindows<S> {
    /// Batches everything. `false` if the window is closed already.
    async fn batch(
        &self,
        ctx: &HandlerContext<'_>,
        window: ShardedId<Window>,
    ) -> Result<bool, SeriesError> {
        let executor = ctx.executor();
        let windows = executor.databases().repository::<Window>();
        let batch = BatchChunk(self.series.clone());
        loop {
            let row = windows.get(window).await?;
            match row.state {
                WindowState::Closing => {}
                WindowState::Closed => return Ok(false),
                WindowState::Open => return Err(SeriesError::Reopened),
            }
            let chunk = WindowChunk { window, number: row.chunks };
            // Without a key: the number of the chunk guards it, and the home of a key may be another shard,
            // which may be down.
            let call = executor.execute(&batch, chunk).principal(S::NAME);
            let outcome = call
                .await
                .map_err(|error| SeriesError::Chunk { chunk: chunk.number, error: error.into() })?;
            if outcome.is_last {
                return Ok(true);
            }
        }
    }
}
