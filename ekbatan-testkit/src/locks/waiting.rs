//! Hints and losses.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use ekbatan_lock::{Attempt, Grant};

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
            let tried = self.other.try_grant(&key, &request(LONG).waiting()).await;
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

    /// The key is handed over to a request that is registered. A backend without registrations
    /// answers that the key is busy.
    pub(super) async fn a_registered_waiter_gets_the_key(&self) -> Result<(), Failure> {
        let key = new_key("registered");
        let grant = self.take(&self.one, &key, LONG).await?;
        let request = request(LONG).waiting();
        let mut handed_over = self.other.handed_over(&key, request.owner);
        let tried = loop {
            poll_fn(|context| Poll::Ready(handed_over.as_mut().poll(context).is_ready())).await;
            let tried = self.other.try_grant(&key, &request).await.map_err(broke("try_grant"))?;
            if tried != Attempt::Queued {
                break tried;
            }
            self.ensure_taken(&key).await?;
            if self.one.release(&key, &grant).await.map_err(broke("release"))?.ours {
                self.ensure_taken(&key).await.map_err(|why| format!("after a hand-over: {why}"))?;
            }
            match tokio::time::timeout(self.patience, &mut handed_over).await {
                Ok(Some(handed)) => break Attempt::HandedOver(handed),
                // The request has to be repeated.
                Ok(None) => handed_over = self.other.handed_over(&key, request.owner),
                Err(_) => return Err("a registered request was not handed the key".to_owned()),
            }
        };
        let next = match tried {
            Attempt::Busy(_) => return self.give_back(&self.one, &key, &grant).await,
            Attempt::HandedOver(handed) => handed.grant,
            Attempt::Granted(grant) => grant,
            other => return Err(format!("{other:?} of a key that is given up")),
        };
        ensure(next.owner == request.owner, || "a hand-over names another owner".to_owned())?;
        ensure(next.token > grant.token, || "the next token is not greater".to_owned())?;
        if self.other.extend(&key, &next, LONG).await.map_err(broke("extend"))? {
            self.ensure_taken(&key).await?;
            return self.give_back(&self.other, &key, &next).await;
        }
        // The machine was busy for longer than the short term of a hand-over.
        let after = self.take_in_the_end(&self.one, &key).await?;
        self.give_back(&self.one, &key, &after).await
    }

    /// A release with a token of zero removes the registration.
    pub(super) async fn a_waiter_that_has_gone(&self) -> Result<(), Failure> {
        let key = new_key("gone");
        let grant = self.take(&self.one, &key, LONG).await?;
        let request = request(LONG).waiting();
        let mut handed_over = self.other.handed_over(&key, request.owner);
        poll_fn(|context| Poll::Ready(handed_over.as_mut().poll(context).is_ready())).await;
        let tried = self.other.try_grant(&key, &request).await.map_err(broke("try_grant"))?;
        let is_held = matches!(tried, Attempt::Queued | Attempt::Busy(_));
        ensure(is_held, || format!("{tried:?} of a taken key"))?;
        drop(handed_over);
        let unknown = Grant { owner: request.owner, token: 0 };
        let given_up = self.other.release(&key, &unknown).await.map_err(broke("release"))?;
        ensure(!given_up.ours, || "a waiter released the holder's grant".to_owned())?;
        self.ensure_taken(&key).await?;
        self.give_back(&self.one, &key, &grant).await?;
        // Without a registration, a hint may keep the key for the waiter for a moment.
        let next = match tried {
            Attempt::Queued => self.take(&self.one, &key, LONG).await,
            _ => self.take_in_the_end(&self.one, &key).await,
        };
        let next = next.map_err(|why| format!("beside a waiter that has gone: {why}"))?;
        self.give_back(&self.one, &key, &next).await
    }

    /// The holder would leave the key alone for a moment, and nobody would take it.
    pub(super) async fn who_does_not_wait_wants_nothing(&self) -> Result<(), Failure> {
        let key = new_key("unwanted");
        let grant = self.take(&self.one, &key, LONG).await?;
        let tried = self.other.try_grant(&key, &request(LONG)).await.map_err(broke("try_grant"))?;
        ensure(matches!(tried, Attempt::Busy(_)), || format!("{tried:?} of a taken key"))?;
        // What a try leaves to be done is done before the next answer.
        self.other.inspect(&key).await.map_err(broke("inspect"))?;
        let released = self.one.release(&key, &grant).await.map_err(broke("release"))?;
        ensure(!released.wanted, || "a key is wanted although nobody waits for it".to_owned())
    }

    /// The next holder would make way for a process that has gone.
    pub(super) async fn who_has_released_wants_nothing(&self) -> Result<(), Failure> {
        let key = new_key("released");
        let grant = self.take(&self.one, &key, LONG).await?;
        let waits = request(LONG).waiting();
        let tried = self.other.try_grant(&key, &waits).await.map_err(broke("try_grant"))?;
        // What a call leaves to be done is done before the next answer.
        self.other.inspect(&key).await.map_err(broke("inspect"))?;
        if tried == Attempt::Queued {
            let unknown = Grant { owner: waits.owner, token: 0 };
            self.other.release(&key, &unknown).await.map_err(broke("release"))?;
        }
        self.give_back(&self.one, &key, &grant).await?;
        self.one.inspect(&key).await.map_err(broke("inspect"))?;
        let next = self.take_in_the_end(&self.other, &key).await?;
        let released = self.other.release(&key, &next).await.map_err(broke("release"))?;
        ensure(released.ours, || "a grant that stands was not released as ours".to_owned())?;
        ensure(!released.wanted, || "a key is wanted by a process that has released it".to_owned())
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
