//! Until when no other node takes this one for dead.
//!
//! Invariant: the time counts from the moment before the last renewal was sent. Others see the renewal later,
//! and wait for as long as the lease from then on.

use tokio::sync::watch;
use tokio::time::Instant;
use uuid::Uuid;

/// The time after which others may take over what a node has claimed, unless it is renewed.
#[derive(Clone)]
pub(crate) struct Alive(watch::Receiver<Life>);

/// The identity under which a node lives, and until when.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Life {
    pub(crate) node: Uuid,
    pub(crate) until: Instant,
}

impl Alive {
    pub(crate) fn of(life: Life) -> (watch::Sender<Life>, Self) {
        let (sender, receiver) = watch::channel(life);
        (sender, Self(receiver))
    }

    pub(crate) fn ends(&self) -> Instant {
        self.0.borrow().until
    }

    /// Whether what a node has claimed under this identity may begin. After a node was lost it lives under
    /// another one.
    pub(crate) fn is_under(&self, node: Uuid) -> bool {
        self.0.borrow().node == node && !self.is_over()
    }

    /// Whether nothing may begin. A process that was stopped finds this out before it is renewed.
    fn is_over(&self) -> bool {
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_was_claimed_under_an_earlier_identity_does_not_begin_after_a_renewal() {
        let (lost, present) = (Uuid::now_v7(), Uuid::now_v7());
        let (life, alive) = Alive::of(Life { node: lost, until: Instant::now() });
        assert!(!alive.is_under(lost), "its time is over");
        let until = Instant::now() + Duration::from_secs(3_600);
        life.send_replace(Life { node: present, until });
        assert!(alive.is_under(present));
        assert!(!alive.is_under(lost), "others may have handled it");
    }
}
