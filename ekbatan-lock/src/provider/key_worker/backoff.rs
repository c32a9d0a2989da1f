//! The pauses before a request that failed is repeated.

use std::time::Duration;

/// Pauses that double, each with jitter, so that processes do not repeat in step.
pub(super) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(super) fn new((first, longest): (Duration, Duration)) -> Self {
        Self { next: first, longest }
    }

    /// The next pause: between half and all of its length.
    pub(super) fn pause(&mut self) -> Duration {
        let pause = self.next.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.next = self.next.saturating_mul(2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let mut backoff = Backoff::new((Duration::from_millis(10), Duration::from_millis(35)));
        for longest in [10, 20, 35, 35] {
            let (pause, longest) = (backoff.pause(), Duration::from_millis(longest));
            assert!(pause >= longest / 2 && pause <= longest, "{pause:?}");
        }
    }
}
