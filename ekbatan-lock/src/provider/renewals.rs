//! Renewals of leases: those of one moment are one request to the server.
//!
//! Renewals of equal terms fall on the same moments, because each begins at a multiple of its
//! interval, counted from the start of the provider. Those that come within [`GATHERING`] of the
//! first one travel together.
//!
//! Invariants: no renewal depends on another one. If the common request fails, is late, or leaves
//! a lease out, the lease is extended by a request of its own. The same holds if the runtime that should
//! send the common request stands still. A renewal that nobody waits for any more is not sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::{BackendError, GrantExtension, LockBackend};

/// How long the first renewal waits for others.
const GATHERING: Duration = Duration::from_millis(2);

/// How many leases one request extends.
const AT_ONCE: usize = 500;

/// The part of the shortest term after which a common request is late. Renewals begin when a third
/// of a term has passed, so there is time for requests of their own.
const LATE: u32 = 6;

/// The renewals of a provider.
pub(crate) struct Renewals {
    began: Instant,
    gathered: Arc<Mutex<Vec<Asked>>>,
}

struct Asked {
    extension: GrantExtension,
    answer: oneshot::Sender<Result<bool, BackendError>>,
}

impl Renewals {
    pub(crate) fn new() -> Self {
        Self { began: Instant::now(), gathered: Arc::default() }
    }

    /// The last common moment of renewals with this interval that is not after `latest`; `latest`
    /// if there is none after `now`.
    pub(crate) fn aligned(&self, now: Instant, latest: Instant, interval: Duration) -> Instant {
        let since = latest.saturating_duration_since(self.began).as_nanos();
        let past = since.checked_rem(interval.as_nanos()).unwrap_or_default();
        let past = Duration::from_nanos(u64::try_from(past).unwrap_or_default());
        latest.checked_sub(past).filter(|common| *common > now).unwrap_or(latest)
    }

    /// Extends a grant, in one request with those that others ask for at about the same time. Without
    /// an answer within `patience`, the grant is extended by a request of its own, too: the first answer
    /// counts.
    pub(crate) async fn extend(
        &self,
        backend: &Arc<dyn LockBackend>,
        extension: GrantExtension,
        patience: Duration,
    ) -> Result<bool, BackendError> {
        let (answer, mut answered) = oneshot::channel();
        let is_first = {
            let mut gathered = self.gathered.lock().unwrap_or_else(PoisonError::into_inner);
            gathered.push(Asked { extension: extension.clone(), answer });
            gathered.len() == 1
        };
        if is_first {
            // A task, because the caller may be dropped while others wait for the request. If the
            // runtime ends before it, dropping the task answers all of them.
            let mut gathering = Gathering(Some(self.gathered.clone()));
            let backend = backend.clone();
            tokio::spawn(async move {
                tokio::time::sleep(GATHERING).await;
                send(&*backend, gathering.end()).await;
            });
        }
        let ended =
            |_| Err(BackendError::in_doubt("the runtime that extended the lease has ended"));
        if let Ok(answer) = tokio::time::timeout(patience, &mut answered).await {
            return answer.unwrap_or_else(ended);
        }
        let GrantExtension { key, grant, term } = extension;
        // What is gathered still, a runtime was to send that stands still.
        let mut left = Gathering(Some(self.gathered.clone())).end();
        left.retain(|asked| asked.extension.grant != grant);
        if !left.is_empty() {
            let backend = backend.clone();
            tokio::spawn(async move { send(&*backend, left).await });
        }
        tokio::select! {
            Ok(Ok(extended)) = &mut answered => Ok(extended),
            extended = backend.extend(&key, &grant, term) => extended,
        }
    }
}

/// The task that is to send what is gathered. If it is dropped before, the next renewal is the
/// first one again.
struct Gathering(Option<Arc<Mutex<Vec<Asked>>>>);

impl Gathering {
    fn end(&mut self) -> Vec<Asked> {
        let gathered = self.0.take();
        gathered.map_or_else(Vec::new, |gathered| {
            std::mem::take(&mut *gathered.lock().unwrap_or_else(PoisonError::into_inner))
        })
    }
}

impl Drop for Gathering {
    fn drop(&mut self) {
        drop(self.end());
    }
}

async fn send(backend: &dyn LockBackend, mut asked: Vec<Asked>) {
    asked.retain(|asked| !asked.answer.is_closed());
    let mut requests = Vec::new();
    while !asked.is_empty() {
        let rest = asked.split_off(asked.len().min(AT_ONCE));
        requests.push(extend_together(backend, std::mem::replace(&mut asked, rest)));
    }
    join_all(requests).await;
}

/// Extends the grants in one request, and those that it leaves out one by one.
async fn extend_together(backend: &dyn LockBackend, asked: Vec<Asked>) {
    let extended = if asked.len() > 1 { together(backend, &asked).await } else { Vec::new() };
    let mut alone = Vec::new();
    for (at, Asked { extension, mut answer }) in asked.into_iter().enumerate() {
        if extended.get(at) == Some(&true) {
            let _ = answer.send(Ok(true));
        } else {
            alone.push(async move {
                let GrantExtension { key, grant, term } = extension;
                // Later, the holder may have extended the lease for longer.
                tokio::select! {
                    biased;
                    () = answer.closed() => {}
                    extended = backend.extend(&key, &grant, term) => drop(answer.send(extended)),
                }
            });
        }
    }
    join_all(alone).await;
}

/// Which of the grants one request has extended.
async fn together(backend: &dyn LockBackend, asked: &[Asked]) -> Vec<bool> {
    let extensions: Vec<GrantExtension> = asked.iter().map(|of| of.extension.clone()).collect();
    let shortest = extensions.iter().map(|extension| extension.term).min().unwrap_or_default();
    let request = backend.extend_all(&extensions);
    match tokio::time::timeout(shortest / LATE, request).await {
        Ok(Ok(extended)) => extended,
        Ok(Err(error)) => {
            tracing::debug!(%error, "leases could not be extended together");
            Vec::new()
        }
        Err(_) => {
            tracing::debug!("extending leases together takes too long");
            Vec::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use futures_util::FutureExt;

    use super::*;
    use crate::{
        Attempt, Grant, GrantRequest, Holder, KeyedLockProvider, Lease, LockKey, LockOptions,
        LockProvider, ProcessBackend, Released,
    };

    const TERM: Duration = Duration::from_secs(3);
    const LEASES: usize = 20;

    /// What becomes of the common requests.
    #[derive(Clone, Copy)]
    enum Common {
        Answered,
        LeavesOneOut,
        Fails,
        IsLate,
    }

    #[derive(Default)]
    struct Counts {
        common: AtomicUsize,
        alone: AtomicUsize,
    }

    struct Counted {
        inner: ProcessBackend,
        common: Common,
        /// How long the extension of one grant takes.
        takes: Duration,
        counts: Arc<Counts>,
    }

    impl Counted {
        fn new(common: Common, takes: Duration) -> (Self, Arc<Counts>) {
            let (inner, counts) = (ProcessBackend::new(), Arc::<Counts>::default());
            (Self { inner, common, takes, counts: counts.clone() }, counts)
        }
    }

    #[async_trait]
    impl LockBackend for Counted {
        fn name(&self) -> &'static str {
            "counted"
        }

        async fn try_grant(
            &self,
            key: &str,
            request: &GrantRequest,
        ) -> Result<Attempt, BackendError> {
            self.inner.try_grant(key, request).await
        }

        async fn extend(
            &self,
            key: &str,
            grant: &Grant,
            term: Duration,
        ) -> Result<bool, BackendError> {
            self.counts.alone.fetch_add(1, Ordering::SeqCst);
            tokio::time::sleep(self.takes).await;
            self.inner.extend(key, grant, term).await
        }

        async fn set_term(
            &self,
            key: &str,
            grant: &Grant,
            term: Duration,
        ) -> Result<bool, BackendError> {
            self.inner.set_term(key, grant, term).await
        }

        async fn extend_all(
            &self,
            extensions: &[GrantExtension],
        ) -> Result<Vec<bool>, BackendError> {
            self.counts.common.fetch_add(1, Ordering::SeqCst);
            match self.common {
                Common::Fails => return Err(BackendError::unavailable("a test")),
                Common::IsLate => std::future::pending().await,
                Common::Answered | Common::LeavesOneOut => {}
            }
            let mut extended = Vec::new();
            for GrantExtension { key, grant, term } in extensions {
                let is_left_out = matches!(self.common, Common::LeavesOneOut) && key.ends_with("7");
                extended.push(!is_left_out && self.inner.extend(key, grant, *term).await?);
            }
            Ok(extended)
        }

        async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
            self.inner.release(key, grant).await
        }

        async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
            self.inner.inspect(key).await
        }

        async fn force_release(
            &self,
            key: &str,
            seen: &Grant,
            why: &str,
        ) -> Result<bool, BackendError> {
            self.inner.force_release(key, seen, why).await
        }

        fn frees_by_itself(&self) -> bool {
            true
        }
    }

    /// Holds many leases for three terms. Returns the numbers of common requests and of others.
    async fn renewed(common: Common) -> (usize, usize) {
        let (counted, counts) = Counted::new(common, Duration::ZERO);
        let locks = LockProvider::new(counted, "test");
        let mut leases = Vec::new();
        for n in 0..LEASES {
            let options = LockOptions::default().hold(TERM * 100).renewed(TERM);
            let key = LockKey::named(&format!("{n}"));
            leases.push(locks.take(&key, &options).await.unwrap().unwrap());
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
        // Not beyond the next renewal.
        tokio::time::sleep(TERM * 3 + TERM / 4).await;
        assert!(leases.iter().all(Lease::is_held));
        (counts.common.load(Ordering::SeqCst), counts.alone.load(Ordering::SeqCst))
    }

    #[tokio::test(start_paused = true)]
    async fn leases_of_one_term_are_renewed_in_one_request() {
        let (common, alone) = renewed(Common::Answered).await;
        assert!((8..=10).contains(&common), "{common}");
        assert_eq!(alone, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_common_request_does_not_extend_is_extended_by_itself() {
        let (common, alone) = renewed(Common::LeavesOneOut).await;
        // Two keys end with a 7.
        assert_eq!(alone, common * 2);
        for broken in [Common::Fails, Common::IsLate] {
            let (common, alone) = renewed(broken).await;
            assert_eq!(alone, common * LEASES);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_comes_late_counts_although_another_request_was_sent() {
        let (takes, patience) = (TERM / 3, TERM / 4);
        let (counted, counts) = Counted::new(Common::Answered, takes);
        let backend: Arc<dyn LockBackend> = Arc::new(counted);
        let (renewals, begun) = (Renewals::new(), Instant::now());
        let grant = Grant { owner: uuid::Uuid::nil(), token: 1 };
        let extension = GrantExtension::new("k", grant, TERM);
        renewals.extend(&backend, extension, patience).await.unwrap();
        assert!(begun.elapsed() < patience + takes, "the first answer");
        assert_eq!(counts.alone.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_runtime_that_stands_still_keeps_no_lease_of_another_from_being_renewed() {
        let runtime = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().start_paused(true).build().unwrap()
        };
        let (counted, counts) = Counted::new(Common::Answered, Duration::ZERO);
        let backend: Arc<dyn LockBackend> = Arc::new(counted);
        let renewals = Renewals::new();
        let renewing = |token, patience| {
            let grant = Grant { owner: uuid::Uuid::nil(), token };
            renewals.extend(&backend, GrantExtension::new("k", grant, TERM), patience)
        };
        let (standing, running) = (runtime(), runtime());
        standing.block_on(async { assert!(renewing(0, TERM).now_or_never().is_none()) });
        running.block_on(async {
            let begun = Instant::now();
            let (impatient, patient) = tokio::join!(renewing(1, TERM / 3), renewing(2, TERM));
            impatient.unwrap();
            patient.unwrap();
            assert!(begun.elapsed() < TERM / 2, "one sends for both");
            renewing(3, TERM).await.unwrap();
            assert!(begun.elapsed() < TERM / 2, "the next one waits for nobody");
        });
        assert_eq!(counts.alone.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn renewals_of_one_interval_fall_on_the_same_moments() {
        let renewals = Renewals::new();
        let interval = Duration::from_millis(100);
        let after = |millis| renewals.began + Duration::from_millis(millis);
        let aligned = |now, latest| renewals.aligned(after(now), after(latest), interval);
        assert_eq!([(3, 103), (97, 197)].map(|(now, at)| aligned(now, at)), [100, 100].map(after));
        assert_eq!(aligned(1_000, 1_100), after(1_100));
        assert_eq!(aligned(30, 45), after(45), "no common moment comes before");
        assert_eq!(renewals.aligned(after(0), after(7), Duration::ZERO), after(7));
    }
}
