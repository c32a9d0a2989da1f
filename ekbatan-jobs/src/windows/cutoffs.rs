//! When the windows of a series close, and what they are called.

use std::fmt::Write as _;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, TimeDelta, Utc};

use crate::schedule::Schedule;

/// The longest name of a window, in bytes.
pub(super) const LONGEST_NAME: usize = 255;

/// The cutoffs of a schedule, and the keys of their windows.
///
/// ```
/// # use ekbatan_jobs::Schedule;
/// # use ekbatan_jobs::windows::Cutoffs;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let schedule = Schedule::cron("0 17 * * MON-FRI", "America/Sao_Paulo")?;
/// let cutoffs = Cutoffs::new(schedule, "STR-D0-%Y%m%d-%Hh%M")?;
/// let next = cutoffs.after("2026-05-08T12:00:00Z".parse()?).ok_or("the schedule has ended")?;
/// assert_eq!(next.key, "STR-D0-20260508-17h00");
/// assert_eq!(next.instant.to_rfc3339(), "2026-05-08T20:00:00+00:00");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cutoffs {
    schedule: Schedule,
    key: String,
}

/// When a window closes, and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cutoff {
    /// The key of the window.
    pub key: String,
    /// The instant before which the window does not close.
    pub instant: DateTime<Utc>,
}

/// Error returned when cutoffs cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CutoffsError {
    /// The pattern of the keys is none.
    #[error(
        "`{0}` is no pattern of keys; write the date and the time by %Y, %m, %d, %H, %M and %S, and %% for a percent sign"
    )]
    Pattern(String),
    /// Two windows would have one key.
    #[error(
        "the windows of {first} and {second} would both have the key `{key}`; let the pattern `{pattern}` name the date and the time, with %Y, %m, %d, %H, %M and %S, as far as they differ"
    )]
    #[non_exhaustive]
    SameKey {
        /// The pattern.
        pattern: String,
        /// The key.
        key: String,
        /// The first cutoff.
        first: DateTime<Utc>,
        /// The one after it.
        second: DateTime<Utc>,
    },
    /// A key is empty, or too long to be stored.
    #[error("the key `{0}` has {1} bytes; use 1 to {LONGEST_NAME}")]
    Length(String, usize),
    /// The schedule has no cutoffs of its own.
    #[error("the schedule `{0}` counts from the end of runs; use `cron`, `daily` or `every`")]
    Delay(String),
}

impl Cutoffs {
    /// The slots of a schedule. `key` is a pattern of
    /// [`strftime`](chrono::format::strftime), with the time in the time zone of the schedule. If the clocks skip
    /// that time, the key has the time that the schedule names, so that each day has a key of its own.
    ///
    /// A key must not come again, so it names the date. If the clocks repeat an hour, windows of a frequent
    /// schedule would have one key twice: let it be in UTC.
    pub fn new(schedule: Schedule, key: impl Into<String>) -> Result<Self, CutoffsError> {
        let key = key.into();
        if schedule.is_delay() {
            return Err(CutoffsError::Delay(schedule.to_string()));
        }
        if StrftimeItems::new(&key).any(|item| matches!(item, Item::Error)) {
            return Err(CutoffsError::Pattern(key));
        }
        let cutoffs = Self { schedule, key };
        cutoffs.check()?;
        Ok(cutoffs)
    }

    /// Compares the keys of a few windows, and of later ones: those after a minute, an hour and half a day,
    /// which a pattern may not name, and those of the same time on other days.
    fn check(&self) -> Result<(), CutoffsError> {
        let first = self.after(DateTime::UNIX_EPOCH);
        let few =
            std::iter::successors(first.clone(), |before| self.after(before.instant)).take(100);
        let day = 24 * 60;
        let minutes = [1, 60, day / 2, day, 7 * day, 31 * day, 365 * day];
        let later = minutes.map(TimeDelta::minutes).into_iter().filter_map(|time| {
            self.after(first.as_ref()?.instant + time - TimeDelta::microseconds(1))
        });
        let mut known: Vec<Cutoff> = Vec::new();
        for cutoff in few.chain(later) {
            if cutoff.key.is_empty() || cutoff.key.len() > LONGEST_NAME {
                return Err(CutoffsError::Length(cutoff.key.clone(), cutoff.key.len()));
            }
            let same = known
                .iter()
                .find(|other| other.key == cutoff.key && other.instant != cutoff.instant);
            if let Some(same) = same {
                let (first, second) =
                    (same.instant.min(cutoff.instant), same.instant.max(cutoff.instant));
                let (pattern, key) = (self.key.clone(), cutoff.key);
                return Err(CutoffsError::SameKey { pattern, key, first, second });
            }
            known.push(cutoff);
        }
        Ok(())
    }

    /// The first cutoff after an instant; `None` if the schedule has ended.
    pub fn after(&self, instant: DateTime<Utc>) -> Option<Cutoff> {
        let instant = self.schedule.next_after(instant)?;
        let mut key = String::new();
        // The pattern was checked. A date beyond its years gives a key that is cut short.
        let _ = match self.schedule.skipped_time(instant) {
            Some(skipped) => write!(key, "{}", skipped.format(&self.key)),
            None => {
                let local = instant.with_timezone(&self.schedule.zone());
                write!(key, "{}", local.format(&self.key))
            }
        };
        Some(Cutoff { key, instant })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn keys_are_written_in_the_zone_of_the_schedule() {
        let daily = Schedule::cron("30 9,17 * * *", "Asia/Kolkata").unwrap();
        let cutoffs = Cutoffs::new(daily, "D0-%Y-%m-%d-%Hh%M").unwrap();
        let first = cutoffs.after(at("2026-05-04T03:59:59Z")).unwrap();
        assert_eq!(
            (&*first.key, first.instant),
            ("D0-2026-05-04-09h30", at("2026-05-04T04:00:00Z"))
        );
        let second = cutoffs.after(first.instant).unwrap();
        assert_eq!(
            (&*second.key, second.instant),
            ("D0-2026-05-04-17h30", at("2026-05-04T12:00:00Z"))
        );
        let often = Schedule::every(Duration::from_secs(5)).unwrap();
        let cutoffs = Cutoffs::new(often, "%Y%m%d-%H%M%S").unwrap();
        assert_eq!(cutoffs.after(at("2026-05-04T03:59:59Z")).unwrap().key, "20260504-040000");
    }

    #[test]
    fn a_key_has_the_time_that_the_schedule_names_also_if_the_clocks_skip_it() {
        let keys = |schedule: Schedule, pattern, from| {
            let cutoffs = Cutoffs::new(schedule, pattern).unwrap();
            let first = cutoffs.after(at(from)).unwrap();
            let second = cutoffs.after(first.instant).unwrap();
            [first, second].map(|cutoff| format!("{} {}", cutoff.key, cutoff.instant))
        };
        // On 2025-03-29 the clocks of Nuuk skip 23:00 to 24:00.
        let (nuuk, evening) = ("America/Nuuk", "2025-03-29T12:00:00Z");
        let late = ["20250329 2025-03-30 01:00:00 UTC", "20250330 2025-03-31 00:30:00 UTC"];
        let cron = Schedule::cron("30 23 * * *", nuuk).unwrap();
        assert_eq!(keys(cron, "%Y%m%d", evening), late);
        let daily = Schedule::daily(["23:30:00".parse().unwrap()], nuuk).unwrap();
        assert_eq!(keys(daily, "%Y%m%d", evening), late);
        // A time at the end of the gap is not skipped.
        let midnight = Schedule::cron("0 0 * * *", nuuk).unwrap();
        let expected = ["20250330 2025-03-30 01:00:00 UTC", "20250331 2025-03-31 01:00:00 UTC"];
        assert_eq!(keys(midnight, "%Y%m%d", evening), expected);
        // On 2026-03-29 the clocks of Berlin skip 02:00 to 03:00, on 2026-10-25 they repeat it.
        let nightly = Schedule::cron("30 2 * * *", "Europe/Berlin").unwrap();
        let expected =
            ["20260329-02h30 2026-03-29 01:00:00 UTC", "20260330-02h30 2026-03-30 00:30:00 UTC"];
        assert_eq!(keys(nightly, "%Y%m%d-%Hh%M", "2026-03-28T12:00:00Z"), expected);
        let hourly = Schedule::cron("0 * * * *", "Europe/Berlin").unwrap();
        let expected = [
            "20260329-01+0100 2026-03-29 00:00:00 UTC",
            "20260329-03+0200 2026-03-29 01:00:00 UTC",
        ];
        assert_eq!(keys(hourly.clone(), "%Y%m%d-%H%z", "2026-03-28T23:30:00Z"), expected);
        let expected = [
            "20261025-02+0200 2026-10-25 00:00:00 UTC",
            "20261025-02+0100 2026-10-25 01:00:00 UTC",
        ];
        assert_eq!(keys(hourly, "%Y%m%d-%H%z", "2026-10-24T23:30:00Z"), expected);
    }

    #[test]
    fn a_pattern_by_which_a_key_would_come_again_is_refused() {
        let daily = || Schedule::cron("0 17 * * *", "UTC").unwrap();
        for pattern in ["STR-D0-17h00", "STR-D0-%Hh%M", "STR-%d", "STR-%m-%d"] {
            let refused = Cutoffs::new(daily(), pattern).unwrap_err();
            assert!(matches!(refused, CutoffsError::SameKey { .. }), "{pattern}: {refused}");
        }
        for (millis, pattern) in [
            (60_000, "%Y%m%d-%H"),
            (500, "%Y%m%d-%H%S%.3f"),
            (30_000, "%Y%m%d-%M%S"),
            (300_000, "%Y%m%d-%Ih%M"),
        ] {
            let often = Schedule::every(Duration::from_millis(millis)).unwrap();
            let refused = Cutoffs::new(often, pattern).unwrap_err();
            assert!(matches!(refused, CutoffsError::SameKey { .. }), "{pattern}: {refused}");
            assert!(refused.to_string().contains("%H, %M and %S"), "{refused}");
        }
        for pattern in ["%Q", "%", "%Y-%!"] {
            let refused = Cutoffs::new(daily(), pattern).unwrap_err();
            assert_eq!(refused, CutoffsError::Pattern(pattern.to_owned()));
        }
        let empty = Cutoffs::new(daily(), "").unwrap_err();
        assert_eq!(empty.to_string(), "the key `` has 0 bytes; use 1 to 255");
        let long = "x".repeat(300) + "%Y%m%d";
        assert!(matches!(Cutoffs::new(daily(), long), Err(CutoffsError::Length(..))));
        let delay = Schedule::delay(Duration::from_secs(60)).unwrap();
        assert!(matches!(Cutoffs::new(delay, "%s"), Err(CutoffsError::Delay(_))));
    }

    #[test]
    fn a_schedule_that_ends_has_no_cutoff_afterwards() {
        let once = Schedule::cron("0 0 12 1 1 * 2027", "UTC").unwrap();
        let cutoffs = Cutoffs::new(once, "once").unwrap();
        assert!(cutoffs.after(at("2026-05-04T00:00:00Z")).is_some());
        assert_eq!(cutoffs.after(at("2027-01-01T12:00:00Z")), None);
    }
}
