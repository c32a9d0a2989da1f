//! The action that closes a window whose rows are batched, and the one that refuses what comes then.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use ekbatan_core::action::{Action, ActionContext, Contention};
use ekbatan_core::domain::{LockKey, ShardedId};
use ekbatan_core::repository::ReadError;
use serde::{Deserialize, Serialize};

use super::series::{OfWindow, WindowSeries};
use super::window::{Window, WindowChanges};

/// Closes a window.
pub(super) struct FinishClosing<S>(pub(super) Arc<S>);

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct BatchedWindow {
    pub(super) window: ShardedId<Window>,
    /// The time by the clock of the database.
    pub(super) now: DateTime<Utc>,
}

impl<S: WindowSeries> Action for FinishClosing<S> {
    const NAME: &'static str = "windows.finish_closing";
    type Params = BatchedWindow;
    type Output = ();
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        batched: &BatchedWindow,
    ) -> Result<(), ReadError> {
        let window = batched.window;
        let Some(closed) = ctx.get(window).await?.closed(batched.now) else { return Ok(()) };
        ctx.plan().update(closed);
        if let Some(later) = self.0.late_check() {
            ctx.plan().enqueue(self.0.refuse(), OfWindow { window }).after(later);
        }
        Ok(())
    }
}

/// Refuses what came into a window after it was closed.
pub(super) struct RefuseLate<S>(pub(super) Arc<S>);

impl<S: WindowSeries> Action for RefuseLate<S> {
    const NAME: &'static str = <S::Refuse as Action>::NAME;
    type Params = OfWindow;
    type Output = <S::Refuse as Action>::Output;
    type Error = <S::Refuse as Action>::Error;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        of: &OfWindow,
    ) -> Result<Self::Output, Self::Error> {
        self.0.refuse().perform(ctx, of).await
    }

    fn contention_keys(&self, of: &OfWindow) -> Vec<LockKey> {
        self.0.refuse().contention_keys(of)
    }

    fn contention(&self) -> Option<Contention> {
        self.0.refuse().contention()
    }
}
