//! The action that opens a window.

use ekbatan_core::action::{Action, ActionContext};
use ekbatan_core::domain::{New, Stored};

use super::cutoffs::LONGEST_NAME;
use super::error::WindowError;
use super::window::{NewWindow, Window};

/// Opens a window, unless it is there.
pub(super) struct OpenWindow {
    pub(super) series: &'static str,
}

impl Action for OpenWindow {
    const NAME: &'static str = "windows.open";
    type Params = NewWindow;
    type Output = Stored<Window>;
    type Error = WindowError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        new: &NewWindow,
    ) -> Result<Stored<Window>, WindowError> {
        let names = [("series", self.series), ("participant", &new.participant), ("key", &new.key)];
        for (what, text) in names {
            if text.trim().is_empty() || text.len() > LONGEST_NAME {
                return Err(WindowError::Name { what, text: text.to_owned() });
            }
        }
        let (window, opened) = Window::open(self.series, new);
        match ctx.find(window.id).await? {
            Some(there) => check_key(&there, new).map(|()| there),
            None => Ok(ctx.plan().add(New::new(window, opened))),
        }
    }
}

/// Fails if a window that is there closed too early to be the one that is to be opened.
pub(super) fn check_key(there: &Window, new: &NewWindow) -> Result<(), WindowError> {
    // Databases keep microseconds.
    match there.closing_date {
        Some(closing_date) if closing_date.timestamp_micros() < new.cutoff.timestamp_micros() => {
            let (key, participant) = (new.key.clone(), new.participant.clone());
            Err(WindowError::KeyAgain { key, participant, closing_date, cutoff: new.cutoff })
        }
        _ => Ok(()),
    }
}
