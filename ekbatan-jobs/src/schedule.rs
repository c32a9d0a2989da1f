//! When a job is due.
//!
//! Invariant: the next slot is later than the instant that it follows. So a schedule never stands
//! still.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, FixedOffset, NaiveDateTime, NaiveTime, TimeDelta, Timelike, Utc};
use chrono_tz::Tz;
use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};

use crate::span;

/// The longest text of a schedule, in bytes. croner's work grows with the text.
const LONGEST_TEXT: usize = 255;

/// The most times a day of one schedule.
const MOST_TIMES: usize = 24;

/// The shortest time between two slots of a rate.
const SHORTEST: Duration = Duration::from_millis(10);

/// When a job is due. A *slot* is an instant at which it is due.
///
/// It is stored as text, which [`Display`](fmt::Display) writes and [`FromStr`] reads:
/// `cron 0 17 * * MON-FRI in America/Sao_Paulo`, `every 15m`, `delay 30s`,
/// `daily 06:00:00,18:00:00 in Europe/Berlin`.
///
/// # Clocks that change
///
/// A cron expression with one second, one minute and one hour, and every time of
/// [`daily`](Self::daily), is due once on each day that it names. A time that the clocks skip is due
/// at the first instant after the gap, unless that is more than two hours later, or on a day that the
/// expression does not name. A time that they repeat is due at the first of both.
///
/// Another cron expression follows the clock on the wall: what it skips is not due, and what it
/// repeats is due twice. A rate knows no clock on the wall. Times of [`daily`](Self::daily) that fall on
/// one instant because the clocks skip some of them are due once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedule(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Cron { cron: Box<Cron>, text: String, zone: Tz },
    Daily { times: Vec<(NaiveTime, Cron)>, zone: Tz },
    Every(Duration),
    Delay(Duration),
}

/// Error returned when a schedule cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleError {
    /// The text is too long.
    #[error("the schedule has {0} bytes; use at most {LONGEST_TEXT}")]
    TooLong(usize),
    /// The text is no cron expression.
    #[error(
        "`{text}` is no cron expression: {why}; write minute, hour, day, month and weekday, such as `0 17 * * MON-FRI`, with a second before them if you need one"
    )]
    #[non_exhaustive]
    Cron {
        /// The text.
        text: String,
        /// The cause.
        why: String,
    },
    /// The cron expression names no instant since 1970.
    #[error("`{0}` names no instant; check its day, month and year")]
    Never(String),
    /// There is no such time zone.
    #[error("there is no time zone `{0}`; write its IANA name, such as Europe/Berlin or UTC")]
    Zone(String),
    /// The times of a day cannot be used.
    #[error("{0}; write 1 to {MOST_TIMES} times of day with whole seconds, each once")]
    Times(String),
    /// The duration cannot be used.
    #[error("{0:?} is no time between two runs; use 10 ms to 100 years, in whole milliseconds")]
    Duration(Duration),
    /// The text is no schedule.
    #[error(
        "`{0}` is no schedule; write `cron .. in <zone>`, `daily .. in <zone>`, `every <duration>` or `delay <duration>`, with durations such as 30s, 15m or 2h"
    )]
    Text(String),
}

impl Schedule {
    /// Due when a cron expression says so, on the clocks of a time zone, such as
    /// `Schedule::cron("0 17 * * MON-FRI", "America/Sao_Paulo")`.
    ///
    /// The expression has five fields: minute, hour, day of month, month, day of week. With six fields the
    /// first one is the second, with seven the last one is the year. `L`, `W`, `#` and names such as
    /// `@daily` are known; see [croner](https://docs.rs/croner).
    pub fn cron(expression: &str, zone: &str) -> Result<Self, ScheduleError> {
        check_length(expression)?;
        let text = expression.split_whitespace().collect::<Vec<_>>().join(" ");
        let zone = zone_of(zone)?;
        let cron = Box::new(parse(&text)?);
        if search(&cron, zone, DateTime::UNIX_EPOCH, true).is_none() {
            return Err(ScheduleError::Never(text));
        }
        let schedule = Self(Kind::Cron { cron, text, zone });
        check_length(&schedule.to_string())?;
        Ok(schedule)
    }

    /// Due at times of the day, on the clocks of a time zone.
    ///
    /// ```
    /// # use ekbatan_jobs::{Schedule, ScheduleError};
    /// use chrono::NaiveTime;
    ///
    /// let times = [(6, 0), (18, 30)].map(|(hour, minute)| NaiveTime::from_hms_opt(hour, minute, 0).unwrap());
    /// let schedule = Schedule::daily(times, "Europe/Berlin")?;
    /// assert_eq!(schedule.to_string(), "daily 06:00:00,18:30:00 in Europe/Berlin");
    /// # Ok::<_, ScheduleError>(())
    /// ```
    pub fn daily(
        times: impl IntoIterator<Item = NaiveTime>,
        zone: &str,
    ) -> Result<Self, ScheduleError> {
        let zone = zone_of(zone)?;
        let mut times: Vec<_> = times.into_iter().take(MOST_TIMES + 1).collect();
        times.sort_unstable();
        let is_whole = |time: &NaiveTime| time.nanosecond() == 0;
        if times.is_empty() || times.len() > MOST_TIMES {
            let why = if times.is_empty() { "there is no time" } else { "there are more times" };
            return Err(ScheduleError::Times(why.to_owned()));
        }
        if let Some(time) = times.iter().find(|time| !is_whole(time)) {
            return Err(ScheduleError::Times(format!("{time} is in a second")));
        }
        if let Some([time, _]) = times.array_windows().find(|[first, second]| first == second) {
            return Err(ScheduleError::Times(format!("{time} is there twice")));
        }
        // One expression for each, so that croner takes each as a fixed time.
        let with_cron = |time: NaiveTime| {
            let text = format!("{} {} {} * * *", time.second(), time.minute(), time.hour());
            Ok((time, parse(&text)?))
        };
        let times = times.into_iter().map(with_cron).collect::<Result<_, _>>()?;
        let schedule = Self(Kind::Daily { times, zone });
        check_length(&schedule.to_string())?;
        Ok(schedule)
    }

    /// Due again and again after the same time, wherever the runs end: at the multiples of it since
    /// the beginning of 1970, UTC. So `every` 15 minutes is due at :00, :15, :30 and :45.
    pub fn every(period: Duration) -> Result<Self, ScheduleError> {
        check_duration(period).map(|()| Self(Kind::Every(period)))
    }

    /// Due this long after the end of the run before. The first time is this long after the job
    /// became known. A run that [`finish`](crate::RunContext::finish) ends counts as ended at that call.
    pub fn delay(delay: Duration) -> Result<Self, ScheduleError> {
        check_duration(delay).map(|()| Self(Kind::Delay(delay)))
    }

    /// The first slot after an instant; `None` if there is none. For a delay, the instant is the end
    /// of a run.
    pub fn next_after(&self, instant: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let next = match &self.0 {
            Kind::Cron { cron, zone, .. } => next_of(cron, *zone, instant),
            Kind::Daily { times, zone } => {
                times.iter().filter_map(|(_, cron)| next_of(cron, *zone, instant)).min()
            }
            Kind::Every(period) => {
                let period = i64::try_from(period.as_millis()).ok()?;
                let past = instant.timestamp_millis().div_euclid(period);
                DateTime::from_timestamp_millis(past.checked_add(1)?.checked_mul(period)?)
            }
            Kind::Delay(delay) => instant.checked_add_signed(TimeDelta::from_std(*delay).ok()?),
        };
        next.filter(|next| *next > instant)
    }

    /// The time zone; UTC where the schedule knows none.
    pub(crate) fn zone(&self) -> Tz {
        match &self.0 {
            Kind::Cron { zone, .. } | Kind::Daily { zone, .. } => *zone,
            Kind::Every(_) | Kind::Delay(_) => Tz::UTC,
        }
    }

    /// The time that the schedule names for a slot, if the clocks skip it. So it is earlier than the slot, and
    /// may be on the day before.
    pub(crate) fn skipped_time(&self, slot: DateTime<Utc>) -> Option<DateTime<FixedOffset>> {
        let second = TimeDelta::seconds(1);
        let local = slot.with_timezone(&self.zone()).naive_local();
        let before = slot.checked_sub_signed(second)?.with_timezone(&self.zone());
        let is_after_gap = local.signed_duration_since(before.naive_local()) > second;
        if !is_after_gap || self.named_after(local.checked_sub_signed(second)?) == Some(local) {
            return None;
        }
        let named = self.named_after(before.naive_local())?;
        // The instant stays that of the slot.
        let offset = (named - slot.naive_utc()).num_seconds();
        let offset = FixedOffset::east_opt(i32::try_from(offset).ok()?)?;
        Some(slot.with_timezone(&offset))
    }

    /// The first time after another one that the schedule names, on clocks that never change.
    fn named_after(&self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        let next = |cron| search(cron, Tz::UTC, time.and_utc(), false);
        let named = match &self.0 {
            Kind::Cron { cron, .. } => next(cron),
            Kind::Daily { times, .. } => times.iter().filter_map(|(_, cron)| next(cron)).min(),
            Kind::Every(_) | Kind::Delay(_) => None,
        };
        named.map(|named| named.naive_utc())
    }

    /// Whether the next slot is known only once a run has ended.
    pub(crate) fn is_delay(&self) -> bool {
        matches!(self.0, Kind::Delay(_))
    }
}

fn parse(text: &str) -> Result<Cron, ScheduleError> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Optional).build();
    parser.parse(text).map_err(|error| {
        let error = error.to_string();
        let error = error.trim_end_matches('.');
        let why = match wrong_field(&parser, text) {
            Some((name, field)) => format!("its {name} is `{field}`: {error}"),
            None => error.to_owned(),
        };
        ScheduleError::Cron { text: text.to_owned(), why }
    })
}

/// The field with which the expression cannot be parsed, and without which it can. The parser does not say
/// which one it is.
fn wrong_field<'t>(parser: &CronParser, text: &'t str) -> Option<(&'static str, &'t str)> {
    const NAMES: [&str; 7] = ["second", "minute", "hour", "day", "month", "weekday", "year"];
    let fields: Vec<&str> = text.split(' ').collect();
    let names = match fields.len() {
        5 => &NAMES[1..6],
        6 => &NAMES[..6],
        7 => &NAMES,
        _ => return None,
    };
    let parses_without = |at: &usize| {
        let mut others = fields.clone();
        others[*at] = "*";
        parser.parse(&others.join(" ")).is_ok()
    };
    let at = (0..fields.len()).find(parses_without)?;
    Some((names[at], fields[at]))
}

fn next_of(cron: &Cron, zone: Tz, instant: DateTime<Utc>) -> Option<DateTime<Utc>> {
    // croner gives up at a gap of more than two hours, and there is one where the clocks skipped a
    // whole day. The search goes on behind it if it ends within 26 hours.
    search(cron, zone, instant, false).or_else(|| {
        let second = DateTime::from_timestamp(instant.timestamp(), 0)?;
        let later = (1..=26).map(|hours| second.checked_add_signed(TimeDelta::hours(hours)));
        later.flatten().find_map(|instant| search(cron, zone, instant, true))
    })
}

fn search(cron: &Cron, zone: Tz, instant: DateTime<Utc>, inclusive: bool) -> Option<DateTime<Utc>> {
    let next = cron.find_next_occurrence(&instant.with_timezone(&zone), inclusive).ok()?;
    Some(next.with_timezone(&Utc))
}

fn zone_of(name: &str) -> Result<Tz, ScheduleError> {
    check_length(name)?;
    name.parse().map_err(|_| ScheduleError::Zone(name.to_owned()))
}

fn check_length(text: &str) -> Result<(), ScheduleError> {
    if text.len() > LONGEST_TEXT { Err(ScheduleError::TooLong(text.len())) } else { Ok(()) }
}

fn check_duration(duration: Duration) -> Result<(), ScheduleError> {
    let is_whole = duration.subsec_nanos().is_multiple_of(1_000_000);
    let fits = (SHORTEST..=span::LONGEST).contains(&duration);
    if is_whole && fits { Ok(()) } else { Err(ScheduleError::Duration(duration)) }
}

impl Schedule {
    /// Whether both are due at the same instants, also if their texts differ, as `mon` and `MON`.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Kind::Cron { cron, zone, .. }, Kind::Cron { cron: other, zone: of_other, .. }) => {
                cron == other && zone == of_other
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Cron { text, zone, .. } => write!(f, "cron {text} in {zone}"),
            Kind::Daily { times, zone } => {
                let times: Vec<_> = times.iter().map(|(time, _)| time.to_string()).collect();
                write!(f, "daily {} in {zone}", times.join(","))
            }
            Kind::Every(period) => write!(f, "every {}", span::write(*period)),
            Kind::Delay(delay) => write!(f, "delay {}", span::write(*delay)),
        }
    }
}

impl FromStr for Schedule {
    type Err = ScheduleError;

    fn from_str(text: &str) -> Result<Self, ScheduleError> {
        check_length(text)?;
        let unknown = || ScheduleError::Text(text.to_owned());
        let (kind, rest) = text.trim().split_once(' ').ok_or_else(unknown)?;
        match kind {
            "cron" => {
                let (expression, zone) = rest.rsplit_once(" in ").ok_or_else(unknown)?;
                Self::cron(expression, zone.trim())
            }
            "daily" => {
                let (times, zone) = rest.rsplit_once(" in ").ok_or_else(unknown)?;
                let time = |text: &str| text.trim().parse::<NaiveTime>().map_err(|_| unknown());
                let times = times.split(',').map(time).collect::<Result<Vec<_>, _>>()?;
                Self::daily(times, zone.trim())
            }
            "every" => Self::every(span::read(rest.trim()).ok_or_else(unknown)?),
            "delay" => Self::delay(span::read(rest.trim()).ok_or_else(unknown)?),
            _ => Err(unknown()),
        }
    }
}

#[cfg(test)]
mod tests;
