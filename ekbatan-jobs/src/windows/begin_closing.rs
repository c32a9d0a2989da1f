//! The action that begins to close a window.

use chrono::{DateTime, Utc};
use ekbatan_core::action::{Action, ActionContext};
use ekbatan_core::domain::{ShardedId, Stored};
use serde::{Deserialize, Serialize};

use super::error::WindowError;
use super::window::{Window, WindowChanges};

/// Begins to close a window whose cutoff has come. From its commit on, no action that adds a row
/// finds the window open.
pub(super) struct BeginClosing;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(super) struct DueWindow {
    pub(super) window: ShardedId<Window>,
    /// The time by the clock of the database.
    pub(super) now: DateTime<Utc>,
}

impl Action for BeginClosing {
    const NAME: &'static str = "windows.begin_closing";
    type Params = DueWindow;
    type Output = Stored<Window>;
    type Error = WindowError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        due: &DueWindow,
    ) -> Result<Stored<Window>, WindowError> {
        let window = ctx.get(due.window).await?;
        if due.now < window.cutoff {
            let (key, participant) = (window.key.clone(), window.participant.clone());
            return Err(WindowError::TooEarly {
                key,
                participant,
                cutoff: window.cutoff,
                now: due.now,
            });
        }
        Ok(match window.clone().begun_to_close(due.now) {
            Some(closing) => ctx.plan().update(closing),
            None => window,
        })
    }
}
