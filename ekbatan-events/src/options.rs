//! How a handler is run.

use std::time::Duration;

use ekbatan_core::config::EventsConfig;

/// A pause is never longer, whatever the options say.
const LONGEST_PAUSE: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// How many times an event is tried that was too old when its handler first got it, unless the pauses alone
/// take as long as the age at which events are given up.
const RUNS_OF_OLD: u32 = 10;

/// How a handler is run. The default handles the events of each model in their order, retries a
/// failed event with growing pauses for a week, and then parks it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct HandlerOptions {
    /// In which order events are handled.
    pub order: Order,
    /// How many events of this handler a node handles at a time, on each shard. At least 1.
    pub concurrency: usize,
    /// How many runs a node begins in a time, on each shard; `None` for no limit.
    pub rate: Option<Rate>,
    /// The time after which one run of the handler is given up and counts as failed.
    pub timeout: Duration,
    /// The pause before a failed event is tried again.
    pub retry: RetryDelay,
    /// After how many runs an event is given up; `None` for no limit.
    pub max_attempts: Option<u32>,
    /// At which age an event is given up; `None` for no limit. One that was older when its handler first got
    /// it is given up after ten runs.
    pub max_age: Option<Duration>,
    /// What happens to an event that is given up.
    pub after_last_attempt: AfterLastAttempt,
    /// Which of the earlier events a handler gets that is new.
    pub start_from: StartFrom,
    /// The events that the handler wants, by name; empty for all of its type.
    pub only: Vec<String>,
    /// Earlier names of the handler, whose events it handles too.
    pub aliases: Vec<String>,
}

/// A number of runs in a time, as [`HandlerOptions::rate`] sets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Rate {
    /// At least 1.
    pub runs: u32,
    /// The time.
    pub per: Duration,
}

impl Rate {
    /// The time from the begin of one run to that of the next.
    pub(crate) fn pause(&self) -> Duration {
        self.per / self.runs.max(1)
    }
}

/// In which order a handler gets events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// The events of one model one after another, in the order of its versions. Events of different
    /// models are handled side by side.
    #[default]
    PerModel,
    /// In any order, all side by side.
    None,
}

/// What happens to an event that is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AfterLastAttempt {
    /// It stays where it is until somebody retries or skips it. If the handler has an order, later
    /// events of its model wait.
    #[default]
    Park,
    /// It moves to the dead letters, and later events of its model are handled.
    DeadLetter,
}

/// Which events a handler gets that a database does not know yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum StartFrom {
    /// All events of its types that are stored.
    #[default]
    Beginning,
    /// Those that are emitted from now on.
    Now,
}

/// The pause before a failed event is tried again. It doubles with each failure, and each pause is
/// shortened by a random part of up to a half, so that events that failed together do not come
/// back together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryDelay {
    /// The pause after the first failure.
    pub first: Duration,
    /// The longest pause.
    pub longest: Duration,
}

impl Default for RetryDelay {
    fn default() -> Self {
        Self { first: Duration::from_secs(1), longest: Duration::from_secs(60) }
    }
}

impl RetryDelay {
    /// The pause after this many failures, at least 1, with `random` from 0 to 1.
    pub(crate) fn after(self, failures: u32, random: f64) -> Duration {
        // A time of which no date lies beyond what can be stored.
        let longest = self.longest.min(LONGEST_PAUSE);
        let doubled = 2_u32.saturating_pow(failures.saturating_sub(1));
        let pause = self.first.saturating_mul(doubled).min(longest);
        pause.mul_f64(1.0 - random.clamp(0.0, 1.0) / 2.0)
    }
}

impl Default for HandlerOptions {
    fn default() -> Self {
        Self {
            order: Order::default(),
            concurrency: 16,
            rate: None,
            timeout: Duration::from_secs(60),
            retry: RetryDelay::default(),
            max_attempts: None,
            max_age: Some(Duration::from_secs(7 * 24 * 60 * 60)),
            after_last_attempt: AfterLastAttempt::default(),
            start_from: StartFrom::default(),
            only: Vec::new(),
            aliases: Vec::new(),
        }
    }
}

impl HandlerOptions {
    /// The default options under a configuration.
    pub(crate) fn of(config: &EventsConfig) -> Self {
        let RetryDelay { first, .. } = RetryDelay::default();
        let longest = config.longest_retry;
        let retry = RetryDelay { first: first.min(longest), longest };
        Self { retry, max_age: Some(config.max_age), ..Self::default() }
    }

    /// The age at which an event is given up that has failed so many times; `None` if no age is too great
    /// yet. Its handler may be new, or was paused, so that the event was old when it could first be handled. It is
    /// tried some times all the same.
    pub(crate) fn age_to_give_up(&self, failures: u32) -> Option<Duration> {
        let tried_for = |age: &Duration| {
            let pauses = (1..=failures).map(|n| self.retry.after(n, 0.0));
            failures >= RUNS_OF_OLD || pauses.sum::<Duration>() >= *age
        };
        self.max_age.filter(tried_for)
    }

    /// Options for a handler whose events have no order.
    pub fn unordered() -> Self {
        Self { order: Order::None, ..Self::default() }
    }

    /// Sets how many events a node handles at a time, on each shard.
    #[must_use]
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// Lets a node begin at most so many runs in this time, on each shard, evenly spread: as many as
    /// the receiver outside accepts, divided by the number of nodes.
    #[must_use]
    pub fn rate(mut self, runs: u32, per: Duration) -> Self {
        self.rate = Some(Rate { runs, per });
        self
    }

    /// Sets the time after which one run is given up.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets the first and the longest pause before a failed event is tried again.
    #[must_use]
    pub fn retry(mut self, first: Duration, longest: Duration) -> Self {
        self.retry = RetryDelay { first, longest };
        self
    }

    /// Gives an event up after so many runs.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts);
        self
    }

    /// Gives an event up at this age; `None` for no limit. An event may be older when its handler first gets it,
    /// because the handler is new, was paused, or no node ran. It is given up once it has failed ten times, or
    /// its pauses take as long as this age. So all of a new handler's history is run at least once.
    #[must_use]
    pub fn max_age(mut self, age: impl Into<Option<Duration>>) -> Self {
        self.max_age = age.into();
        self
    }

    /// Moves events that are given up to the dead letters, so that later ones are handled.
    #[must_use]
    pub fn dead_letters(mut self) -> Self {
        self.after_last_attempt = AfterLastAttempt::DeadLetter;
        self
    }

    /// Skips the events that are stored before the handler is known to the database.
    #[must_use]
    pub fn from_now_on(mut self) -> Self {
        self.start_from = StartFrom::Now;
        self
    }

    /// Sets the events that the handler wants, by their stored names. Events that it has deliveries of and does
    /// not want any more are done without it.
    #[must_use]
    pub fn only<N: Into<String>>(mut self, events: impl IntoIterator<Item = N>) -> Self {
        self.only = events.into_iter().map(Into::into).collect();
        self
    }

    /// Adds an earlier name of the handler. The handler goes on where it was under that name, also if an
    /// operator had retired it.
    #[must_use]
    pub fn alias(mut self, name: impl Into<String>) -> Self {
        self.aliases.push(name.into());
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let delay = RetryDelay { first: Duration::from_secs(1), longest: Duration::from_secs(60) };
        let pauses: Vec<u64> = (1..=8).map(|n| delay.after(n, 0.0).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(delay.after(u32::MAX, 0.0).as_secs(), 60);
        assert_eq!(delay.after(1, 1.0), Duration::from_millis(500));
        let week = Duration::from_secs(7 * 24 * 60 * 60);
        let options = HandlerOptions::default();
        assert_eq!(options.age_to_give_up(9), None, "about four minutes of pauses");
        assert_eq!(options.age_to_give_up(10), Some(week));
        let hours = options.retry(2 * week, 2 * week);
        assert_eq!((hours.age_to_give_up(0), hours.age_to_give_up(1)), (None, Some(week)));
        let endless = RetryDelay { first: Duration::MAX, longest: Duration::MAX };
        assert_eq!(endless.after(1, 0.0), LONGEST_PAUSE);
    }
}
