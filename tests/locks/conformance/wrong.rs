//! Backends with one defect each: the suite must name the check that each of them fails.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantExtension, GrantRequest, Holder, LockBackend,
    ProcessBackend, Released,
};
use ekbatan_testkit::locks::{LockConformance, NotConforming};

#[derive(Debug, Clone, Copy, PartialEq)]
enum Defect {
    GrantsWhatIsTaken,
    IgnoresCase,
    RepeatsTokens,
    ReleasesForStrangers,
    NeedsTheToken,
    ExtendsWhatIsOver,
    ForceEndsWhatStands,
    ForceEndsNothing,
    IgnoresTerms,
    EndsTermsEarly,
    ForgetsExtensions,
    ShortensTerms,
    ShortensTermsOnceMore,
    NeverShortensTerms,
    HidesTheHolder,
    LosesGrants,
    HidesHeldKeys,
    IgnoresPrefixes,
    TakesPrefixesForPatterns,
    ExtendsAllWithoutLooking,
    ForgetsCommonExtensions,
    SeesWaitersEverywhere,
}

impl Defect {
    /// Whether a machine that is slower than a term may hide it.
    fn shows_within_a_term(self) -> bool {
        use Defect::*;
        matches!(self, EndsTermsEarly | ForgetsExtensions | ForgetsCommonExtensions)
    }
}

struct WrongBackend {
    inner: ProcessBackend,
    defect: Defect,
    tokens: AtomicI64,
}

impl WrongBackend {
    fn has(&self, defect: Defect) -> bool {
        self.defect == defect
    }

    fn name_of(&self, key: &str) -> String {
        if self.has(Defect::IgnoresCase) { key.to_lowercase() } else { key.to_owned() }
    }

    /// Frees the key from its holder, without a look at the owner.
    async fn free(&self, key: &str) -> Result<(), BackendError> {
        if let Some(holder) = self.inner.inspect(key).await? {
            self.inner.force_release(key, &holder.grant(), "").await?;
        }
        Ok(())
    }

    /// What the present holder of the key would say.
    async fn standing(&self, key: &str, grant: &Grant) -> Result<Grant, BackendError> {
        let holder = self.inner.inspect(key).await?;
        Ok(holder.map_or(*grant, |holder| holder.grant()))
    }
}

#[async_trait]
impl LockBackend for WrongBackend {
    fn name(&self) -> &'static str {
        "wrong"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let key = &self.name_of(key);
        if self.has(Defect::GrantsWhatIsTaken) {
            self.free(key).await?;
        }
        let mut request = request.clone();
        match self.defect {
            Defect::IgnoresTerms => request.term *= 1_000_000,
            Defect::EndsTermsEarly => request.term /= 10,
            _ => {}
        }
        if self.has(Defect::ShortensTermsOnceMore) {
            let again = Grant { owner: request.owner, token: 0 };
            self.inner.set_term(key, &again, request.term).await?;
        }
        let attempt = self.inner.try_grant(key, &request).await?;
        Ok(match attempt {
            Attempt::Granted(grant) if self.has(Defect::RepeatsTokens) => {
                let token = self.tokens.fetch_add(1, Ordering::SeqCst) / 2 + 1;
                Attempt::Granted(Grant { token, ..grant })
            }
            attempt => attempt,
        })
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        match self.defect {
            Defect::ExtendsWhatIsOver => Ok(true),
            Defect::ForgetsExtensions => {
                let holder = self.inner.inspect(key).await?;
                Ok(holder.is_some_and(|holder| holder.owner == Some(grant.owner)))
            }
            Defect::ShortensTerms => self.inner.set_term(key, grant, term).await,
            _ => self.inner.extend(&self.name_of(key), grant, term).await,
        }
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        match self.defect {
            Defect::NeverShortensTerms => self.inner.extend(key, grant, term).await,
            _ => self.inner.set_term(&self.name_of(key), grant, term).await,
        }
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let key = &self.name_of(key);
        let mut grant = *grant;
        if self.has(Defect::ReleasesForStrangers) {
            grant = self.standing(key, &grant).await?;
        }
        if self.has(Defect::NeedsTheToken) && grant.token == 0 {
            return Ok(Released { ours: false, wanted: false });
        }
        let released = self.inner.release(key, &grant).await?;
        Ok(Released { wanted: self.has(Defect::SeesWaitersEverywhere), ..released })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        if self.has(Defect::HidesTheHolder) {
            return Ok(None);
        }
        let mut holder = self.inner.inspect(&self.name_of(key)).await?;
        if let Some(holder) = &mut holder
            && self.has(Defect::RepeatsTokens)
        {
            holder.token = 0;
        }
        Ok(holder)
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        match self.defect {
            Defect::HidesHeldKeys => Ok(Vec::new()),
            Defect::IgnoresPrefixes => self.inner.list(&[String::new()], most).await,
            Defect::TakesPrefixesForPatterns => {
                let prefixes: Vec<String> =
                    prefixes.iter().map(|prefix| prefix.replace(['%', '*'], "")).collect();
                self.inner.list(&prefixes, most).await
            }
            _ => self.inner.list(prefixes, most).await,
        }
    }

    async fn extend_all(&self, extensions: &[GrantExtension]) -> Result<Vec<bool>, BackendError> {
        let mut extended = Vec::new();
        for GrantExtension { key, grant, term, .. } in extensions {
            extended.push(match self.defect {
                Defect::ExtendsAllWithoutLooking => true,
                Defect::ForgetsCommonExtensions => {
                    let holder = self.inner.inspect(key).await?;
                    holder.is_some_and(|holder| holder.owner == Some(grant.owner))
                }
                _ => self.inner.extend(key, grant, *term).await?,
            });
        }
        Ok(extended)
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        why: &str,
    ) -> Result<bool, BackendError> {
        let key = &self.name_of(key);
        match self.defect {
            Defect::ForceEndsNothing => Ok(true),
            Defect::ForceEndsWhatStands => {
                let standing = self.standing(key, seen).await?;
                self.inner.force_release(key, &standing, why).await
            }
            _ => self.inner.force_release(key, seen, why).await,
        }
    }

    async fn lost(&self, _: &str, _: &Grant) -> String {
        if self.has(Defect::LosesGrants) {
            return "its session ended".to_owned();
        }
        std::future::pending().await
    }

    fn frees_by_itself(&self) -> bool {
        true
    }
}

/// What the suite finds. It runs again if a slow machine may have hidden the defect from the check.
async fn found(suite: LockConformance, defect: Defect, check: &str) -> Result<(), NotConforming> {
    let mut found = suite.run().await;
    for _ in 1..10 {
        if names(&found, check) || !defect.shows_within_a_term() {
            break;
        }
        found = suite.run().await;
    }
    found
}

fn names(found: &Result<(), NotConforming>, check: &str) -> bool {
    found.as_ref().is_err_and(|failures| failures.checks().any(|failed| failed == check))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_defect_is_named() {
    let expected = [
        (Defect::GrantsWhatIsTaken, "a key has one holder"),
        (Defect::IgnoresCase, "keys are told apart"),
        (Defect::RepeatsTokens, "tokens grow"),
        (Defect::ReleasesForStrangers, "only the owner releases"),
        (Defect::NeedsTheToken, "a lost answer can be released"),
        (Defect::ExtendsWhatIsOver, "only what stands is extended"),
        (Defect::ForceEndsWhatStands, "force spares successors"),
        (Defect::ForceEndsNothing, "force ends what was seen"),
        (Defect::IgnoresTerms, "a term ends"),
        (Defect::EndsTermsEarly, "a term ends"),
        (Defect::ForgetsExtensions, "a term is extended"),
        (Defect::ShortensTerms, "an extension that comes late shortens nothing"),
        (Defect::ShortensTermsOnceMore, "a try that comes late shortens nothing"),
        (Defect::NeverShortensTerms, "a term is shortened"),
        (Defect::HidesTheHolder, "the holder is known"),
        (Defect::LosesGrants, "a grant is not lost by itself"),
        (Defect::HidesHeldKeys, "held keys are listed"),
        (Defect::IgnoresPrefixes, "held keys are listed"),
        (Defect::TakesPrefixesForPatterns, "prefixes are texts"),
        (Defect::ExtendsAllWithoutLooking, "several are extended as each is"),
        (Defect::ForgetsCommonExtensions, "several are extended as each is"),
        (Defect::SeesWaitersEverywhere, "who does not wait wants nothing"),
    ];
    let mut suites = tokio::task::JoinSet::new();
    for (defect, check) in expected {
        let inner = ProcessBackend::new();
        let backend = WrongBackend { inner, defect, tokens: AtomicI64::new(0) };
        let suite = LockConformance::of_one(backend).patience(Duration::from_secs(2));
        suites.spawn(async move { (defect, check, found(suite, defect, check).await) });
    }
    while let Some(done) = suites.join_next().await {
        let (defect, check, result) = done.unwrap();
        assert!(names(&result, check), "{defect:?}: {result:?}");
    }
    // With a backend that is right, the same patience is enough.
    let right = LockConformance::of_one(ProcessBackend::new()).patience(Duration::from_secs(10));
    right.run().await.unwrap();
}
