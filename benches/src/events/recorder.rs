//! When deposits were answered and when their events were handled.
//!
//! Invariants: each deposit has an amount of its own, which is its serial number in cents. So an
//! event tells which deposit it belongs to, in every mode. The balance of a wallet only grows, so
//! an event that comes after one with a higher balance was overtaken.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use ekbatan::prelude::{Decimal, Uuid};
use tokio::time::sleep;

use crate::failure::Failure;

/// The most deposits of one measurement.
const MOST: usize = 2_000_000;

/// How long a measurement waits for the next event to be handled.
const PATIENCE: Duration = Duration::from_secs(120);

/// Records what became of the deposits of one measurement.
pub struct Recorder {
    origin: Instant,
    /// By serial number, in nanoseconds since `origin`; 0 while it did not happen.
    answered: Vec<AtomicU64>,
    started: Vec<AtomicU64>,
    next: AtomicU64,
    handled: AtomicU64,
    repeated: AtomicU64,
    overtaken: AtomicU64,
    /// By wallet, the highest balance of a handled event, in cents.
    balances: HashMap<Uuid, AtomicI64>,
}

impl Recorder {
    pub fn new(wallets: &[Uuid]) -> Self {
        let zeros = || std::iter::repeat_with(|| AtomicU64::new(0)).take(MOST).collect();
        Self {
            origin: Instant::now(),
            answered: zeros(),
            started: zeros(),
            next: AtomicU64::new(0),
            handled: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            overtaken: AtomicU64::new(0),
            balances: wallets.iter().map(|wallet| (*wallet, AtomicI64::new(0))).collect(),
        }
    }

    /// The number of the next deposit.
    pub fn next(&self) -> Result<u64, Failure> {
        let next = self.next.fetch_add(1, Relaxed);
        if (next as usize) < MOST {
            Ok(next)
        } else {
            Err(format!("a measurement has at most {MOST} deposits; lower --seconds").into())
        }
    }

    /// How many deposits there were.
    pub fn deposits(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// How many events were handled.
    pub fn events_handled(&self) -> u64 {
        self.handled.load(Relaxed)
    }

    pub fn amount(serial: u64) -> Decimal {
        // A serial number is far below the limit.
        Decimal::new(i64::try_from(serial).unwrap_or(i64::MAX).saturating_add(1), 2)
    }

    pub fn answered(&self, serial: u64) {
        self.answered[serial as usize].store(self.now(), Relaxed);
    }

    /// The handler for an event starts.
    pub fn handle(&self, wallet: Uuid, amount: Decimal, balance: Decimal) -> Result<(), Failure> {
        let now = self.now();
        let (serial, balance) = (cents(amount)? - 1, cents(balance)?);
        let started = self.started.get(usize::try_from(serial)?).ok_or("an unknown deposit")?;
        if started.swap(now, Relaxed) != 0 {
            self.repeated.fetch_add(1, Relaxed);
        }
        let highest = self.balances.get(&wallet).ok_or("an unknown wallet")?;
        if highest.fetch_max(balance, Relaxed) >= balance {
            self.overtaken.fetch_add(1, Relaxed);
        }
        self.handled.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Waits until as many events are handled.
    pub async fn wait_for(&self, events: u64) -> Result<(), Failure> {
        let (mut seen, mut since) = (self.handled.load(Relaxed), Instant::now());
        while seen < events {
            sleep(Duration::from_millis(1)).await;
            let present = self.handled.load(Relaxed);
            if present > seen {
                (seen, since) = (present, Instant::now());
            } else if since.elapsed() > PATIENCE {
                return Err(format!(
                    "after {seen} of {events} events, none was handled for {PATIENCE:?}"
                )
                .into());
            }
        }
        Ok(())
    }

    /// From the answers of deposits to the starts of their handlers. Zero where the handler
    /// started first.
    pub fn delays(&self, serials: Range<u64>) -> Vec<Duration> {
        let delay = |serial: u64| {
            let (answered, started) =
                (&self.answered[serial as usize], &self.started[serial as usize]);
            Duration::from_nanos(started.load(Relaxed).saturating_sub(answered.load(Relaxed)))
        };
        serials.map(delay).collect()
    }

    /// Fails unless as many events were handled once each, and in order if there is one.
    pub fn check(&self, events: u64, is_ordered: bool) -> Result<(), Failure> {
        let (handled, repeated) = (self.handled.load(Relaxed), self.repeated.load(Relaxed));
        let overtaken = self.overtaken.load(Relaxed);
        if handled != events || repeated > 0 || (is_ordered && overtaken > 0) {
            return Err(format!(
                "{events} events, but {handled} were handled, {repeated} of them not for the first time and {overtaken} after a later one of their wallet"
            )
            .into());
        }
        Ok(())
    }

    fn now(&self) -> u64 {
        u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
    }
}

fn cents(amount: Decimal) -> Result<i64, Failure> {
    Ok(i64::try_from((amount * Decimal::ONE_HUNDRED).trunc())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_is_repeated_or_overtaken_is_noticed() -> Result<(), Failure> {
        let wallet = Uuid::now_v7();
        let balance = |cents| Decimal::new(cents, 2);
        let recorder = Recorder::new(&[wallet]);
        recorder.handle(wallet, Recorder::amount(0), balance(1))?;
        recorder.handle(wallet, Recorder::amount(2), balance(6))?;
        recorder.check(2, true)?;
        recorder.handle(wallet, Recorder::amount(1), balance(3))?;
        recorder.check(3, false)?;
        assert!(recorder.check(3, true).is_err());
        recorder.handle(wallet, Recorder::amount(1), balance(3))?;
        assert!(recorder.check(4, false).is_err());
        Ok(())
    }

    #[test]
    fn a_handler_that_starts_before_the_answer_has_no_delay() -> Result<(), Failure> {
        let wallet = Uuid::now_v7();
        let recorder = Recorder::new(&[wallet]);
        recorder.handle(wallet, Recorder::amount(0), Decimal::ONE)?;
        recorder.answered(0);
        recorder.answered(1);
        std::thread::sleep(Duration::from_millis(2));
        recorder.handle(wallet, Recorder::amount(1), Decimal::TWO)?;
        let delays = recorder.delays(0..2);
        assert_eq!(delays[0], Duration::ZERO);
        assert!(delays[1] >= Duration::from_millis(2));
        Ok(())
    }
}
