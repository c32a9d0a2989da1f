//! Release by force.

use std::sync::Arc;

use ekbatan_lock::{Grant, LockBackend};

use super::{Failure, LONG, LockConformance, broke, ensure, new_key};

impl LockConformance {
    pub(super) async fn force_ends_what_was_seen(&self) -> Result<(), Failure> {
        for by in self.forcing() {
            let key = new_key("force");
            let grant = self.take(&self.one, &key, LONG).await?;
            let seen = self.seen(by, &key).await?;
            ensure(force(by, &key, &seen).await?, || "a grant that stands stays".to_owned())?;
            self.ensure_over(&key, &grant).await?;
            let next = self.take_in_the_end(&self.other, &key).await?;
            ensure(next.token > grant.token, || "the next token is not greater".to_owned())?;
            self.give_back(&self.other, &key, &next).await?;
        }
        Ok(())
    }

    /// The grant that was seen is over; another one stands.
    pub(super) async fn force_spares_successors(&self) -> Result<(), Failure> {
        for by in self.forcing() {
            let key = new_key("successor");
            let grant = self.take(&self.one, &key, LONG).await?;
            let seen = self.seen(by, &key).await?;
            self.give_back(&self.one, &key, &grant).await?;
            let free = force(by, &key, &seen).await?;
            ensure(!free, || "a grant that was over was ended".to_owned())?;
            for successor in [&self.one, &self.other] {
                let next = self.take(successor, &key, LONG).await?;
                let ended = force(by, &key, &seen).await?;
                ensure(!ended, || "force answered that it ended a grant that was over".to_owned())?;
                self.ensure_taken(&key)
                    .await
                    .map_err(|why| format!("force ended a successor: {why}"))?;
                self.give_back(successor, &key, &next).await?;
            }
        }
        Ok(())
    }

    /// The backends that can end the grants of the first one.
    fn forcing(&self) -> Vec<&Arc<dyn LockBackend>> {
        if self.forces_others { vec![&self.one, &self.other] } else { vec![&self.one] }
    }

    async fn seen(&self, by: &Arc<dyn LockBackend>, key: &str) -> Result<Grant, Failure> {
        let holder = by.inspect(key).await.map_err(broke("inspect"))?;
        Ok(holder.ok_or("a key that is taken has no holder")?.grant())
    }
}

async fn force(by: &Arc<dyn LockBackend>, key: &str, seen: &Grant) -> Result<bool, Failure> {
    by.force_release(key, seen, "conformance").await.map_err(broke("force_release"))
}
