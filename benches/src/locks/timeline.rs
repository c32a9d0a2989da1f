//! Turns the recorded holds into latencies.
//!
//! All times are nanoseconds of the machine's clock, so that times of different processes
//! can be compared.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::options::Measure;
use crate::failure::Failure;
use crate::statistics::RoundResult;

/// One period in which a client held the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyHold {
    /// The number of the process.
    pub process: u64,
    /// When the client began to acquire.
    pub asked: u64,
    /// When it held the key.
    pub acquired: u64,
    /// When it began to release.
    pub releasing: u64,
    /// When it had released.
    pub done: u64,
}

/// The clock that all processes of a machine share, but monotonic within a process.
#[derive(Clone, Copy)]
pub struct MachineClock {
    wall: Duration,
    started: Instant,
}

impl MachineClock {
    pub fn start() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { wall, started: Instant::now() }
    }

    pub fn now(self) -> u64 {
        let now = self.wall + self.started.elapsed();
        u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Rejects holds that overlap. `holds` must be in the order of acquisition.
pub fn check(holds: &[KeyHold]) -> Result<(), Failure> {
    for pair in holds.windows(2) {
        if pair[1].acquired < pair[0].releasing {
            return Err(format!("two clients held the key at the same time: {pair:?}").into());
        }
    }
    Ok(())
}

/// The rate and the latencies. In `handoff`, one event is a change of process, and its
/// latency is the time from the start of the release until the other process holds the
/// key. In the other measures, one event is a hold, and its latency is the time from the
/// start of the acquisition to the end of the release.
pub fn sample(holds: &[KeyHold], measure: Measure) -> Option<RoundResult> {
    let began = holds.iter().map(|hold| hold.asked).min()?;
    let ended = holds.iter().map(|hold| hold.done).max()?;
    let latencies: Vec<Duration> = match measure {
        Measure::Handoff => holds
            .windows(2)
            .filter(|pair| pair[0].process != pair[1].process)
            .map(|pair| Duration::from_nanos(pair[1].acquired - pair[0].releasing))
            .collect(),
        _ => holds.iter().map(|hold| Duration::from_nanos(hold.done - hold.asked)).collect(),
    };
    (!latencies.is_empty())
        .then(|| RoundResult::new(latencies, Duration::from_nanos(ended - began)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(process: u64, asked: u64, acquired: u64, releasing: u64) -> KeyHold {
        KeyHold { process, asked, acquired, releasing, done: releasing + 5 }
    }

    #[test]
    fn overlapping_holds_are_rejected() {
        assert!(check(&[hold(0, 0, 10, 20), hold(1, 0, 20, 30)]).is_ok());
        assert!(check(&[hold(0, 0, 10, 20), hold(1, 0, 19, 30)]).is_err());
    }

    #[test]
    fn a_handoff_is_a_change_of_process() {
        let holds = [hold(0, 0, 10, 20), hold(0, 20, 30, 40), hold(1, 5, 47, 60)];
        let handed = sample(&holds, Measure::Handoff).unwrap();
        assert_eq!(handed.p50, Duration::from_nanos(7));
        assert!(sample(&holds[..2], Measure::Handoff).is_none());
        let each = sample(&holds, Measure::Local).unwrap();
        assert_eq!((each.p50, each.p99), (Duration::from_nanos(25), Duration::from_nanos(60)));
    }
}
