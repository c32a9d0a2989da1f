//! Until when no other node takes this one for dead.
//!
//! Invariant: the time counts from the moment before the last renewal was sent. Others see the renewal later,
//! and wait for as long as the lease from then on.

use tokio::sync::watch;
use tokio::time::Instant;

/// The time after which others may take over what a node has claimed, unless it is renewed.
#[derive(Clone)]
pub(crate) struct Alive(watch::Receiver<Instant>);

impl Alive {
    pub(crate) fn until(until: Instant) -> (watch::Sender<Instant>, Self) {
        let (sender, receiver) = watch::channel(until);
        (sender, Self(receiver))
    }

    pub(crate) fn ends(&self) -> Instant {
        *self.0.borrow()
    }

    /// Whether nothing may begin. A process that was stopped finds this out before it is renewed.
    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.ends()
    }

    /// Waits for a renewal.
    pub(crate) async fn renewed(&mut self) -> Result<(), watch::error::RecvError> {
        self.0.changed().await
    }

    /// Waits until the time is over.
    pub(crate) async fn over(&self) {
        while !self.is_over() {
            tokio::time::sleep_until(self.ends()).await;
        }
    }
}
