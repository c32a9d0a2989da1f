//! The action that opens a window.

use chrono::{DateTime, Utc};
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
            Some(there) => check_key(&there, new, DateTime::<Utc>::MIN_UTC).map(|()| there),
            None => Ok(ctx.plan().add(New::new(window, opened))),
        }
    }
}

/// Fails if a window that is there closed too early to be the one that is to be opened. One with a cutoff until
/// `now` is about to close.
pub(super) fn check_key(
    there: &Window,
    new: &NewWindow,
    now: DateTime<Utc>,
) -> Result<(), WindowError> {
    let due = Some(there.cutoff).filter(|cutoff| *cutoff <= now);
    // Databases keep microseconds.
    match there.closing_date.or(due) {
        Some(closing_date) if closing_date.timestamp_micros() < new.cutoff.timestamp_micros() => {
            let (key, participant) = (new.key.clone(), new.participant.clone());
            Err(WindowError::KeyAgain { key, participant, closing_date, cutoff: new.cutoff })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    #[test]
    fn a_window_that_is_due_is_not_that_of_a_later_cutoff() {
        let cutoff = Utc::now();
        let of = |cutoff| NewWindow::new("anna", "02h", cutoff);
        let (there, _) = Window::open("orders", &of(cutoff));
        let later = of(cutoff + TimeDelta::hours(1));
        let before = cutoff - TimeDelta::seconds(1);
        assert!(check_key(&there, &later, before).is_ok(), "an open window keeps its cutoff");
        assert!(check_key(&there, &of(cutoff), cutoff).is_ok());
        let again = check_key(&there, &later, cutoff);
        assert!(matches!(again, Err(WindowError::KeyAgain { .. })), "{again:?}");
    }
}
