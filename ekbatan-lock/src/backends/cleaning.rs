//! Decides when to look for rows of keys that nobody has used for long, and in which slice.
//!
//! A process looks at a slice of its table after its first release and then after every
//! [`RELEASES`]th, so that the work keeps step with the keys that are used, and an idle process
//! does none. The number of rows stays within about four thirds of the keys of a day.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Number of releases of this process for each slice.
pub(crate) const RELEASES: u64 = 256;

/// The slices of a table, in the order of its keys.
#[derive(Debug, Default)]
pub struct CleaningSlices {
    progress: Mutex<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    releases: u64,
    /// The last key of the slice before.
    after: String,
    due: bool,
}

impl CleaningSlices {
    /// How long the row of a key that is free is kept, counted from the time that its last token
    /// stands for.
    pub const KEPT: Duration = Duration::from_secs(86_400);

    /// Number of rows of a slice.
    pub const ROWS: usize = 1_000;

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a release.
    pub fn released(&self, key: &str) {
        let mut progress = self.progress();
        progress.due |= progress.releases.is_multiple_of(RELEASES);
        if progress.releases == 0 && fastrand::bool() {
            // Processes that end soon begin in different places.
            progress.after = key.to_owned();
        }
        progress.releases += 1;
    }

    /// The key after which the next slice begins, if one is due.
    pub fn next(&self) -> Option<String> {
        let mut progress = self.progress();
        std::mem::take(&mut progress.due).then(|| progress.after.clone())
    }

    /// Notes what a slice was: its number of rows, and its last key. After the last slice comes
    /// the first one.
    pub fn looked_at(&self, rows: usize, last: Option<String>) {
        self.progress().after = last.filter(|_| rows >= Self::ROWS).unwrap_or_default();
    }
}
