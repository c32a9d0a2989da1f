//! From what the processes wrote down to latencies.
//!
//! All times are nanoseconds of one machine's clock, so that those of different processes can
//! be compared.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::Measure;
use crate::Failure;
use crate::report::Sample;

/// One time that one contender had the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section {
    /// Which process had it.
    pub process: u64,
    /// When it began to ask.
    pub asked: u64,
    /// When it had the key.
    pub acquired: u64,
    /// When it began to give it back.
    pub releasing: u64,
    /// When it had given it back.
    pub done: u64,
}

/// The clock that all processes of a machine share, but never going back.
#[derive(Clone, Copy)]
pub struct Clock {
    wall: Duration,
    started: Instant,
}

impl Clock {
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall, started: Instant::now() }
    }

    pub fn now(self) -> u64 {
        let now = self.wall + self.started.elapsed();
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Refuses sections of which two were at the same time. They have to be in the order in which
/// the key was had.
pub fn check(sections: &[Section]) -> Result<(), Failure> {
    for pair in sections.windows(2) {
        if pair[1].acquired < pair[0].releasing {
            return Err(format!("two held the key at the same time: {pair:?}").into());
        }
    }
    Ok(())
}

/// How many sections there were in a second, and how long each took from asking for the key
/// until it was given back. Of hand-offs: how many there were, and how long each took from the
/// beginning of the release until the other process had the key.
pub fn sample(sections: &[Section], measure: Measure) -> Option<Sample> {
    let began = sections.iter().map(|section| section.asked).min()?;
    let ended = sections.iter().map(|section| section.done).max()?;
    let latencies: Vec<Duration> = match measure {
        Measure::Handoff => sections
            .windows(2)
            .filter(|pair| pair[0].process != pair[1].process)
            .map(|pair| Duration::from_nanos(pair[1].acquired - pair[0].releasing))
            .collect(),
        _ => sections
            .iter()
            .map(|section| Duration::from_nanos(section.done - section.asked))
            .collect(),
    };
    (!latencies.is_empty()).then(|| Sample::new(latencies, Duration::from_nanos(ended - began)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(process: u64, asked: u64, acquired: u64, releasing: u64) -> Section {
        Section { process, asked, acquired, releasing, done: releasing + 5 }
    }

    #[test]
    fn two_at_the_same_time_are_noticed() {
        assert!(check(&[section(0, 0, 10, 20), section(1, 0, 20, 30)]).is_ok());
        assert!(check(&[section(0, 0, 10, 20), section(1, 0, 19, 30)]).is_err());
    }

    #[test]
    fn a_hand_off_is_from_one_process_to_the_other() {
        let sections = [section(0, 0, 10, 20), section(0, 20, 30, 40), section(1, 5, 47, 60)];
        let handed = sample(&sections, Measure::Handoff).unwrap();
        assert_eq!(handed.p50, Duration::from_nanos(7));
        assert!(sample(&sections[..2], Measure::Handoff).is_none());
        let each = sample(&sections, Measure::Local).unwrap();
        assert_eq!((each.p50, each.p99), (Duration::from_nanos(25), Duration::from_nanos(60)));
    }
}
