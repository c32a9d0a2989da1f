//! Grants, their owners and their tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ekbatan_lock::{Attempt, Grant, LockBackend};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::ends::{ROUNDING, SHORT};
use super::{Failure, LONG, LockConformance, broke, ensure, new_key, request};
use crate::drop_at_poll;

impl LockConformance {
    pub(super) async fn a_key_has_one_holder(&self) -> Result<(), Failure> {
        let (key, free) = (new_key("holder"), new_key("free"));
        let grant = self.take(&self.one, &key, LONG).await?;
        self.ensure_taken(&key).await?;
        let of_another = self.take(&self.other, &free, LONG).await?;
        self.give_back(&self.other, &free, &of_another).await?;
        self.give_back(&self.one, &key, &grant).await?;
        let next = self.take(&self.other, &key, LONG).await?;
        self.give_back(&self.other, &key, &next).await
    }

    /// Names that a server may take for one: by their case, trailing spaces, accents or length.
    /// No name that a provider uses has more than 255 characters.
    pub(super) async fn keys_are_told_apart(&self) -> Result<(), Failure> {
        let base = new_key("name");
        let long = "x".repeat(254 - base.len());
        let keys = [
            base.clone(),
            base.to_uppercase(),
            format!("{base} "),
            format!("{base}e"),
            format!("{base}\u{e9}"),
            format!("{base}{long}a"),
            format!("{base}{long}b"),
        ];
        let mut grants = Vec::new();
        for key in &keys {
            let grant = self.take(&self.one, key, LONG).await;
            let grant = grant.map_err(|why| format!("{key:?}, beside the keys before: {why}"))?;
            grants.push((key, grant));
        }
        for (key, grant) in grants {
            self.give_back(&self.one, key, &grant).await?;
        }
        Ok(())
    }

    pub(super) async fn tokens_grow(&self) -> Result<(), Failure> {
        let key = new_key("tokens");
        let mut last = 0;
        for n in 0..30 {
            let by = if n % 3 == 0 { &self.other } else { &self.one };
            let grant = self.take(by, &key, LONG).await?;
            ensure(grant.token > last, || format!("token {} came after {last}", grant.token))?;
            last = grant.token;
            self.give_back(by, &key, &grant).await?;
        }
        Ok(())
    }

    pub(super) async fn contenders_exclude_each_other(&self) -> Result<(), Failure> {
        const TASKS: usize = 6;
        const GRANTS: usize = 10;
        let key = new_key("contenders");
        let inside = Arc::new(AtomicUsize::new(0));
        let mut tasks: JoinSet<Result<(), Failure>> = JoinSet::new();
        for n in 0..TASKS {
            let (suite, key, inside) = (self.clone(), key.clone(), inside.clone());
            tasks.spawn(async move {
                let by = if n % 2 == 0 { suite.one.clone() } else { suite.other.clone() };
                for _ in 0..GRANTS {
                    let grant = suite.take_in_the_end(&by, &key).await?;
                    let others = inside.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    ensure(others == 0, || format!("{others} others held the key"))?;
                    suite.give_back(&by, &key, &grant).await?;
                }
                Ok(())
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.map_err(|error| error.to_string())??;
        }
        Ok(())
    }

    pub(super) async fn only_the_owner_releases(&self) -> Result<(), Failure> {
        let key = new_key("owner");
        let grant = self.take(&self.one, &key, LONG).await?;
        let stranger = Grant { owner: Uuid::new_v4(), ..grant };
        for by in [&self.one, &self.other] {
            let released = by.release(&key, &stranger).await.map_err(broke("release"))?;
            ensure(!released.ours, || "a stranger's release was answered as ours".to_owned())?;
            self.ensure_taken(&key).await?;
        }
        self.give_back(&self.one, &key, &grant).await
    }

    pub(super) async fn a_late_release_is_harmless(&self) -> Result<(), Failure> {
        let key = new_key("late");
        let first = self.take(&self.one, &key, LONG).await?;
        self.give_back(&self.one, &key, &first).await?;
        let again = self.one.release(&key, &first).await.map_err(broke("release"))?;
        ensure(!again.ours, || "a second release was answered as ours".to_owned())?;
        let second = self.take(&self.other, &key, LONG).await?;
        let late = self.one.release(&key, &first).await.map_err(broke("release"))?;
        ensure(!late.ours, || "a late release was answered as ours".to_owned())?;
        self.ensure_taken(&key).await?;
        self.give_back(&self.other, &key, &second).await
    }

    /// With a token of zero the backend goes by the owner.
    pub(super) async fn a_lost_answer_can_be_released(&self) -> Result<(), Failure> {
        let key = new_key("lost answer");
        let grant = self.take(&self.one, &key, LONG).await?;
        let unknown = Grant { token: 0, ..grant };
        self.give_back(&self.one, &key, &unknown).await?;
        let next = self.take(&self.other, &key, LONG).await?;
        self.give_back(&self.other, &key, &next).await
    }

    /// A try is dropped at each of its polls, until one answers. The caller does not know
    /// whether it was granted. The release finds such a grant by its owner; if the try arrives
    /// after the release, the grant ends with its term.
    pub(super) async fn a_dropped_try_can_be_released(&self) -> Result<(), Failure> {
        let term = if self.one.frees_by_itself() { SHORT } else { LONG };
        for polls in 0.. {
            let key = new_key("dropped");
            let request = request(term);
            let tried = drop_at_poll(polls, self.one.try_grant(&key, &request)).await;
            let unknown = Grant { owner: request.owner, token: 0 };
            self.one.release(&key, &unknown).await.map_err(broke("release"))?;
            let next = self.take_in_the_end(&self.other, &key).await;
            let next = next.map_err(|why| format!("dropped after {polls} polls: {why}"))?;
            self.give_back(&self.other, &key, &next).await?;
            if tried.finished().is_some() {
                break;
            }
        }
        Ok(())
    }

    pub(super) async fn the_holder_is_known(&self) -> Result<(), Failure> {
        let key = new_key("inspect");
        let inspect =
            async |by: &Arc<dyn LockBackend>| by.inspect(&key).await.map_err(broke("inspect"));
        ensure(inspect(&self.one).await?.is_none(), || "a free key has a holder".to_owned())?;
        let request = request(LONG);
        let granted = self.one.try_grant(&key, &request).await.map_err(broke("try_grant"))?;
        let Attempt::Granted(grant) = granted else {
            return Err(format!("a free key was not granted: {granted:?}"));
        };
        for by in [&self.one, &self.other] {
            let holder = inspect(by).await?.ok_or("a key that is taken has no holder")?;
            // Only the server's own name of the session may be known to others.
            ensure(!holder.holder.is_empty(), || format!("no name: {holder:?}"))?;
            let token_fits = holder.token == 0 || holder.token == grant.token;
            ensure(token_fits, || format!("not token {}: {holder:?}", grant.token))?;
            let owner_fits = holder.owner.is_none_or(|owner| owner == grant.owner);
            ensure(owner_fits, || format!("not owner {}: {holder:?}", grant.owner))?;
            let rest_fits = holder.remaining.is_none_or(|rest| rest <= LONG + ROUNDING);
            ensure(rest_fits, || format!("more than its term is left: {holder:?}"))?;
        }
        self.give_back(&self.one, &key, &grant).await?;
        let after = inspect(&self.other).await?;
        ensure(after.is_none(), || format!("a key that was released has a holder: {after:?}"))
    }
}
