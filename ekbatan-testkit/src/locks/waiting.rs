//! Hints and losses.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use ekbatan_lock::Attempt;

use super::{Failure, LONG, LockConformance, broke, ensure, new_key, request};

/// How long a grant is watched that must not be lost.
const WATCHED: Duration = Duration::from_millis(200);

impl LockConformance {
    /// The other process listens, then tries, as a waiter does; then the key is released. A lost
    /// hint costs time only, so it may take several releases until one is heard of.
    pub(super) async fn a_release_is_hinted(&self) -> Result<(), Failure> {
        const RELEASES: u32 = 10;
        for _ in 0..RELEASES {
            let key = new_key("hint");
            let grant = self.take(&self.one, &key, LONG).await?;
            let mut freed = self.other.freed(&key);
            // Listening begins with the first poll, and may take the server a moment.
            poll_fn(|context| Poll::Ready(freed.as_mut().poll(context).is_ready())).await;
            let _ = tokio::time::timeout(WATCHED, &mut freed).await;
            drop(freed);
            let mut freed = self.other.freed(&key);
            poll_fn(|context| Poll::Ready(freed.as_mut().poll(context).is_ready())).await;
            let tried = self.other.try_grant(&key, &request(LONG)).await;
            let tried = tried.map_err(broke("try_grant"))?;
            ensure(matches!(tried, Attempt::Busy(_)), || format!("{tried:?} of a taken key"))?;
            self.give_back(&self.one, &key, &grant).await?;
            if tokio::time::timeout(self.patience / RELEASES, freed).await.is_ok() {
                return Ok(());
            }
        }
        Err(format!("none of {RELEASES} releases was hinted to a process that waited"))
    }

    /// Without hints, too: by asking again.
    pub(super) async fn a_waiter_gets_the_key(&self) -> Result<(), Failure> {
        let key = new_key("waiter");
        let grant = self.take(&self.one, &key, LONG).await?;
        let (suite, of_waiter) = (self.clone(), key.clone());
        let waiter =
            tokio::spawn(async move { suite.take_in_the_end(&suite.other, &of_waiter).await });
        tokio::time::sleep(Duration::from_millis(20)).await;
        ensure(!waiter.is_finished(), || "a waiter got a key that is taken".to_owned())?;
        self.give_back(&self.one, &key, &grant).await?;
        let next = waiter.await.map_err(|error| error.to_string())??;
        self.give_back(&self.other, &key, &next).await
    }

    pub(super) async fn a_grant_is_not_lost_by_itself(&self) -> Result<(), Failure> {
        let key = new_key("lost");
        let grant = self.take(&self.one, &key, LONG).await?;
        let lost = tokio::time::timeout(WATCHED, self.one.lost(&key, &grant)).await;
        if let Ok(why) = lost {
            return Err(format!("a grant that stands was lost: {why}"));
        }
        self.ensure_taken(&key).await?;
        self.give_back(&self.one, &key, &grant).await
    }
}
