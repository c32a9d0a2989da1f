//! What one task of an attacking process does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ekbatan::lock::{
    KeyedLockProvider, Lease, LockError, LockKey, LockOptions, LockProvider, LossCause,
};
use futures_util::FutureExt;

use crate::history::Grant;
use crate::holds::{End, ForceCall, Hold};
use crate::ledger::{Depositor, Observation, now};

#[derive(Clone)]
pub struct Attacker {
    pub locks: LockProvider,
    /// Without it nothing is committed.
    pub depositor: Option<Depositor>,
    pub observe: Arc<dyn Fn(Observation) + Send + Sync>,
    pub keys: usize,
}

impl Attacker {
    /// Attacks at random until the end.
    pub async fn attack(self, mut random: fastrand::Rng, stopped: Arc<AtomicBool>) {
        while !stopped.load(Ordering::SeqCst) {
            let key = format!("key {}", random.usize(..self.keys));
            match (random.u8(..10), &self.depositor) {
                (0, _) => self.force(&key, &mut random).await,
                (1..=3, Some(depositor)) => {
                    let options = LockOptions::wait(milliseconds(&mut random, 0..200))
                        .hold(milliseconds(&mut random, 50..400));
                    let _ = depositor.deposit(&key, options, true, None).await;
                }
                _ => self.take(&key, &mut random).await,
            }
            // A refusal that comes at once must not keep the processor busy.
            tokio::time::sleep(Duration::from_micros(random.u64(..500))).await;
        }
    }

    fn failed(&self, what: &str, key: &str, error: impl std::fmt::Display) {
        (self.observe)(Observation::Failed(format!("{what} `{key}`: {error}")));
    }

    async fn force(&self, key: &str, random: &mut fastrand::Rng) {
        let id = format!("force {:x}", random.u128(..));
        let (key_text, called) = (key.to_owned(), now());
        let mut call =
            ForceCall { id: id.clone(), key: key_text, called, answered: None, ended: None };
        (self.observe)(Observation::Forced(call.clone()));
        // Locks of sessions cannot be ended by others everywhere; then the answer is an error.
        call.ended = self.locks.force_release(&LockKey::named(key), &id).await.ok();
        call.answered = Some(now());
        (self.observe)(Observation::Forced(call));
    }

    /// Takes a lease, or gives up at a random moment.
    async fn take(&self, key: &str, random: &mut fastrand::Rng) {
        let wait = match random.u8(..3) {
            0 => Duration::ZERO,
            1 => Duration::from_micros(random.u64(..4_000)),
            _ => milliseconds(random, 0..300),
        };
        let mut options = LockOptions::wait(wait).hold(milliseconds(random, 20..400));
        if random.u8(..4) == 0 {
            options = options.renewed(milliseconds(random, 30..150));
        }
        let requested = now();
        let lock_key = LockKey::named(key);
        let taking = self.locks.take(&lock_key, &options);
        let taken = if random.u8(..6) == 0 {
            let moment = Duration::from_micros(random.u64(..4_000));
            let Ok(taken) = tokio::time::timeout(moment, taking).await else { return };
            taken
        } else {
            taking.await
        };
        match taken {
            Ok(Some(lease)) => {
                self.hold(key, lease, (requested, options.term.is_some()), random).await
            }
            Ok(None) => {}
            // The wait was shorter than a stand-still, or than the server takes.
            Err(LockError::Unavailable { .. } | LockError::InDoubt { .. }) => {}
            Err(error) => self.failed("taking", key, error),
        }
    }

    /// Holds a lease for a while, and ends it in one of several ways.
    async fn hold(
        &self,
        key: &str,
        lease: Lease,
        (requested, renewed): (u64, bool),
        random: &mut fastrand::Rng,
    ) {
        let (key, token, process) = (key.to_owned(), lease.token(), std::process::id());
        let of_key = key.clone();
        let received = now();
        (self.observe)(Observation::Granted(Grant {
            key: of_key,
            token,
            process,
            requested,
            received,
        }));
        let mut hold =
            Hold { key, token, process, requested, from: 0, until: 0, end: End::Dropped };
        let mut held = hold.look(&lease);
        for _ in 0..random.usize(..6) {
            if !held {
                break;
            }
            tokio::time::sleep(Duration::from_micros(random.u64(..20_000))).await;
            held = hold.look(&lease);
            if random.u8(..8) == 0 {
                match lease.extend(milliseconds(random, 10..100)).await {
                    Ok(()) | Err(LockError::Lost { .. }) => {}
                    Err(error) => self.failed("extending", &hold.key, error),
                }
            }
        }
        hold.end = match random.u8(..4) {
            0 => self.outlast(&mut hold, &lease).await,
            1 if hold.look(&lease) => End::Dropped,
            _ if hold.look(&lease) => End::Released(lease.release().await),
            _ => self.outlast(&mut hold, &lease).await,
        };
        drop(lease);
        // One that is renewed does not notice that it stood still for longer than its term until
        // its next renewal has failed, so its looks prove nothing.
        if renewed {
            hold.until = hold.from;
        }
        // A lease that was never seen held is no hold.
        if hold.from > 0 {
            (self.observe)(Observation::Held(hold));
        }
    }

    /// Waits until the lease is lost, and tries to bring it back.
    async fn outlast(&self, hold: &mut Hold, lease: &Lease) -> End {
        let cause = loop {
            hold.look(lease);
            let soon = tokio::time::timeout(Duration::from_millis(2), lease.lost());
            if let Ok(cause) = soon.await {
                break cause;
            }
        };
        if lease.extend(Duration::from_millis(50)).await.is_ok() || lease.is_held() {
            self.failed("after its loss", &hold.key, format!("the lease is held again ({cause})"));
        }
        if lease.lost().now_or_never().is_none() {
            self.failed("after its loss", &hold.key, "`lost` does not say so any more");
        }
        match cause {
            LossCause::Forced(id) => End::ForcedHere(id),
            LossCause::Expired(_) => End::Expired,
            other => End::Lost(other.to_string()),
        }
    }
}

impl Hold {
    /// Notes the moment before the look if the lease is held.
    fn look(&mut self, lease: &Lease) -> bool {
        let before = now();
        let held = lease.is_held();
        if held {
            self.until = before;
            if self.from == 0 {
                self.from = before;
            }
        }
        held
    }
}

fn milliseconds(random: &mut fastrand::Rng, range: std::ops::Range<u64>) -> Duration {
    Duration::from_millis(random.u64(range))
}
