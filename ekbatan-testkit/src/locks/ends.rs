//! Terms, and how they end.

use std::time::{Duration, Instant};

use ekbatan_lock::{Grant, GrantExtension, GrantRequest};
use uuid::Uuid;

use super::{Failure, LONG, LockConformance, broke, ensure, new_key};

/// A term whose end a check waits for.
pub(super) const SHORT: Duration = Duration::from_millis(300);

/// How much shorter or longer than asked for a term may be: servers round.
pub(super) const ROUNDING: Duration = Duration::from_millis(5);

impl LockConformance {
    pub(super) async fn a_term_ends(&self) -> Result<(), Failure> {
        let key = new_key("term");
        let asked = Instant::now();
        let first = self.take(&self.one, &key, SHORT).await?;
        let second = self.take_in_the_end(&self.other, &key).await?;
        let after = asked.elapsed();
        ensure(after + ROUNDING >= SHORT, || {
            format!("a term of {SHORT:?} had ended after {after:?}")
        })?;
        ensure(second.token > first.token, || "the next token is not greater".to_owned())?;
        self.ensure_over(&key, &first).await?;
        self.give_back(&self.other, &key, &second).await
    }

    pub(super) async fn a_term_is_extended(&self) -> Result<(), Failure> {
        let key = new_key("extended");
        let first = self.take(&self.one, &key, SHORT * 4).await?;
        let asked = Instant::now();
        let extended = self.one.extend(&key, &first, SHORT * 8).await;
        if !extended.map_err(broke("extend"))? {
            // The machine was busy for longer than the term.
            return ensure(asked.elapsed() > SHORT, || "a grant was not extended".to_owned());
        }
        let second = self.take_in_the_end(&self.other, &key).await?;
        let after = asked.elapsed();
        ensure(after + ROUNDING >= SHORT * 8, || {
            format!("a term that was extended by {:?} had ended after {after:?}", SHORT * 8)
        })?;
        self.ensure_over(&key, &first).await?;
        self.give_back(&self.other, &key, &second).await
    }

    pub(super) async fn a_term_is_shortened(&self) -> Result<(), Failure> {
        let key = new_key("shortened");
        let first = self.take(&self.one, &key, LONG).await?;
        let shortened = self.one.set_term(&key, &first, SHORT).await.map_err(broke("set_term"))?;
        ensure(shortened, || "a term could not be made shorter".to_owned())?;
        let second = self.take_in_the_end(&self.other, &key).await?;
        self.ensure_over(&key, &first).await?;
        self.give_back(&self.other, &key, &second).await
    }

    pub(super) async fn an_extension_that_comes_late_shortens_nothing(
        &self,
    ) -> Result<(), Failure> {
        let key = new_key("late extension");
        let grant = self.take(&self.one, &key, LONG).await?;
        let extended = self.one.extend(&key, &grant, SHORT).await.map_err(broke("extend"))?;
        ensure(extended, || "a grant that stands was not extended".to_owned())?;
        tokio::time::sleep(SHORT + ROUNDING).await;
        self.ensure_taken(&key).await.map_err(|why| {
            format!("after an extension by {SHORT:?} of a term of {LONG:?}: {why}")
        })?;
        self.give_back(&self.one, &key, &grant).await
    }

    /// A caller without an answer sends its request once more. By the time that the server gets the first one,
    /// the lease may have been extended.
    pub(super) async fn a_try_that_comes_late_shortens_nothing(&self) -> Result<(), Failure> {
        let key = new_key("late try");
        let grant = self.take(&self.one, &key, LONG).await?;
        let again = GrantRequest::new(grant.owner, "the conformance suite", SHORT);
        self.one.try_grant(&key, &again).await.map_err(broke("try_grant"))?;
        tokio::time::sleep(SHORT + ROUNDING).await;
        self.ensure_taken(&key).await.map_err(|why| {
            format!("after a try of its owner for {SHORT:?}, with a term of {LONG:?}: {why}")
        })?;
        self.give_back(&self.one, &key, &grant).await
    }

    pub(super) async fn only_what_stands_is_extended(&self) -> Result<(), Failure> {
        let key = new_key("extend");
        let grant = self.take(&self.one, &key, LONG).await?;
        let extended = self.one.extend(&key, &grant, LONG).await.map_err(broke("extend"))?;
        ensure(extended, || "a grant that stands was not extended".to_owned())?;
        let stranger = Grant { owner: Uuid::new_v4(), ..grant };
        let by_stranger = self.one.extend(&key, &stranger, LONG).await.map_err(broke("extend"))?;
        ensure(!by_stranger, || "a stranger extended a grant".to_owned())?;
        self.give_back(&self.one, &key, &grant).await?;
        self.ensure_over(&key, &grant).await?;
        // And no extension has granted the key anew.
        let next = self.take(&self.other, &key, LONG).await?;
        self.ensure_over(&key, &grant).await?;
        self.give_back(&self.other, &key, &next).await
    }

    /// What is left out is extended by itself, so only what the answer claims counts.
    pub(super) async fn several_are_extended_as_each_is(&self) -> Result<(), Failure> {
        let keys = ["stands", "also stands", "over", "of another"].map(new_key);
        let term = if self.one.frees_by_itself() { SHORT * 4 } else { LONG };
        let mut extensions = Vec::new();
        for key in &keys {
            let grant = self.take(&self.one, key, term).await?;
            extensions.push(GrantExtension::new(key.clone(), grant, LONG));
        }
        let [over, of_another] = [extensions[2].grant, extensions[3].grant];
        // Not as ours for certain: its term may have ended.
        self.one.release(&keys[2], &over).await.map_err(broke("release"))?;
        extensions[3].grant.owner = Uuid::new_v4();
        let extended = self.one.extend_all(&extensions).await.map_err(broke("extend_all"))?;
        ensure(extended.len() == extensions.len(), || {
            format!("{} answers to {} extensions", extended.len(), extensions.len())
        })?;
        ensure(!extended[2], || "a grant that is over was extended among others".to_owned())?;
        ensure(!extended[3], || "a stranger extended a grant among others".to_owned())?;
        if self.one.frees_by_itself() {
            tokio::time::sleep(term + ROUNDING).await;
        }
        for (extension, _) in extensions.iter().zip(&extended).filter(|(_, extended)| **extended) {
            let GrantExtension { key, grant, .. } = extension;
            self.ensure_taken(key).await.map_err(|why| format!("after an extension: {why}"))?;
            self.give_back(&self.one, key, grant).await?;
        }
        // Its term may have ended.
        self.one.release(&keys[3], &of_another).await.map_err(broke("release"))?;
        self.ensure_over(&keys[2], &over).await
    }

    /// Fails unless the backend refuses to extend the grant and says that its release was not ours.
    pub(super) async fn ensure_over(&self, key: &str, grant: &Grant) -> Result<(), Failure> {
        let extended = self.one.extend(key, grant, LONG).await.map_err(broke("extend"))?;
        ensure(!extended, || "a grant that is over was extended".to_owned())?;
        let released = self.one.release(key, grant).await.map_err(broke("release"))?;
        ensure(!released.ours, || "the release of a grant that is over was ours".to_owned())
    }
}
