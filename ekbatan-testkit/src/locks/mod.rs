//! The conformance suite of lock backends: what [`LockProvider`](ekbatan_lock::LockProvider) relies
//! on, checked against a server.
//!
//! ```
//! use ekbatan_lock::ProcessBackend;
//! use ekbatan_testkit::locks::LockConformance;
//!
//! # #[tokio::main]
//! # async fn main() {
//! // Of a backend on a server: `LockConformance::of(one, other)`, two connected as two processes.
//! LockConformance::of_one(ProcessBackend::new()).run().await.unwrap();
//! # }
//! ```
//!
//! Invariants: a check uses keys of its own, and leaves no key held. No check fails because the
//! machine is slow.

mod ends;
mod force;
mod grants;
mod listing;
mod waiting;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ekbatan_lock::{Attempt, BackendError, Grant, GrantRequest, LockBackend};
use uuid::Uuid;

/// Longer than any step takes on a machine that works.
const PATIENCE: Duration = Duration::from_secs(60);

/// A term that does not end during a check.
const LONG: Duration = Duration::from_secs(3_600);

/// A suite for one backend.
#[derive(Clone)]
pub struct LockConformance {
    one: Arc<dyn LockBackend>,
    other: Arc<dyn LockBackend>,
    hints: bool,
    forces_others: bool,
    lists: bool,
    requests_come_late: bool,
    patience: Duration,
}

/// Why a check failed.
type Failure = String;

/// A check, while it runs.
type Running<'c> = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send + 'c>>;

/// The checks that a backend did not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotConforming {
    backend: &'static str,
    failures: Vec<(&'static str, Failure)>,
}

impl NotConforming {
    /// The names of the checks.
    pub fn checks(&self) -> impl Iterator<Item = &'static str> {
        self.failures.iter().map(|(check, _)| *check)
    }
}

impl fmt::Display for NotConforming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the lock backend `{}` does not conform:", self.backend)?;
        self.failures.iter().try_for_each(|(check, why)| write!(f, "\n  {check}: {why}"))
    }
}

impl std::error::Error for NotConforming {}

impl LockConformance {
    /// The suite for two backends on one server, each connected as a process of its own connects
    /// it.
    pub fn of(one: impl LockBackend, other: impl LockBackend) -> Self {
        Self {
            one: Arc::new(one),
            other: Arc::new(other),
            hints: true,
            forces_others: true,
            lists: true,
            requests_come_late: true,
            patience: PATIENCE,
        }
    }

    /// The suite for a backend whose keys are not shared with another one.
    pub fn of_one(backend: impl LockBackend) -> Self {
        let one: Arc<dyn LockBackend> = Arc::new(backend);
        Self {
            other: one.clone(),
            one,
            hints: false,
            forces_others: true,
            lists: true,
            requests_come_late: true,
            patience: PATIENCE,
        }
    }

    /// The same suite, for a backend whose [`freed`](LockBackend::freed) never resolves, so that
    /// waiters depend on [`poll_interval`](LockBackend::poll_interval).
    #[must_use]
    pub fn without_hints(mut self) -> Self {
        self.hints = false;
        self
    }

    /// The same suite, for a backend that cannot end the grant of another process by force.
    #[must_use]
    pub fn without_force_on_others(mut self) -> Self {
        self.forces_others = false;
        self
    }

    /// The same suite, for a backend that refuses to [list](LockBackend::list) its keys.
    #[must_use]
    pub fn without_listing(mut self) -> Self {
        self.lists = false;
        self
    }

    /// The same suite, for a backend whose server refuses a request that arrives after a later one. So
    /// [`extend`](LockBackend::extend) and a repeated [`try_grant`](LockBackend::try_grant) may shorten a term.
    #[must_use]
    pub fn without_late_requests(mut self) -> Self {
        self.requests_come_late = false;
        self
    }

    /// The same suite, which gives up a key that does not get free after this time, a minute by
    /// default.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Runs every check.
    ///
    /// # Errors
    /// Names each check that failed, and why.
    pub async fn run(&self) -> Result<(), NotConforming> {
        let mut failures = Vec::new();
        for (name, check) in self.checks() {
            match tokio::time::timeout(self.patience.saturating_mul(4), check).await {
                Ok(Ok(())) => {}
                Ok(Err(why)) => failures.push((name, why)),
                Err(_) => failures.push((name, "it does not end".to_owned())),
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        Err(NotConforming { backend: self.one.name(), failures })
    }

    fn checks(&self) -> Vec<(&'static str, Running<'_>)> {
        let mut checks: Vec<(&'static str, Running<'_>)> = vec![
            ("a key has one holder", Box::pin(self.a_key_has_one_holder())),
            ("keys are told apart", Box::pin(self.keys_are_told_apart())),
            ("tokens grow", Box::pin(self.tokens_grow())),
            ("contenders exclude each other", Box::pin(self.contenders_exclude_each_other())),
            ("only the owner releases", Box::pin(self.only_the_owner_releases())),
            ("a late release is harmless", Box::pin(self.a_late_release_is_harmless())),
            ("a lost answer can be released", Box::pin(self.a_lost_answer_can_be_released())),
            ("a dropped try can be released", Box::pin(self.a_dropped_try_can_be_released())),
            ("only what stands is extended", Box::pin(self.only_what_stands_is_extended())),
            ("the holder is known", Box::pin(self.the_holder_is_known())),
            ("force ends what was seen", Box::pin(self.force_ends_what_was_seen())),
            ("force spares successors", Box::pin(self.force_spares_successors())),
            ("a grant is not lost by itself", Box::pin(self.a_grant_is_not_lost_by_itself())),
            ("a waiter gets the key", Box::pin(self.a_waiter_gets_the_key())),
            ("a registered waiter gets the key", Box::pin(self.a_registered_waiter_gets_the_key())),
            ("a waiter that has gone gets nothing", Box::pin(self.a_waiter_that_has_gone())),
            ("who does not wait wants nothing", Box::pin(self.who_does_not_wait_wants_nothing())),
            ("who has released wants nothing", Box::pin(self.who_has_released_wants_nothing())),
            ("several are extended as each is", Box::pin(self.several_are_extended_as_each_is())),
        ];
        if self.lists {
            checks.push(("held keys are listed", Box::pin(self.held_keys_are_listed())));
            checks.push(("prefixes are texts", Box::pin(self.prefixes_are_texts())));
        }
        if self.one.frees_by_itself() {
            checks.push(("a term ends", Box::pin(self.a_term_ends())));
            checks.push(("a term is extended", Box::pin(self.a_term_is_extended())));
            checks.push(("a term is shortened", Box::pin(self.a_term_is_shortened())));
            if self.requests_come_late {
                let check = self.an_extension_that_comes_late_shortens_nothing();
                checks.push(("an extension that comes late shortens nothing", Box::pin(check)));
                let check = self.a_try_that_comes_late_shortens_nothing();
                checks.push(("a try that comes late shortens nothing", Box::pin(check)));
            }
        }
        if self.hints {
            checks.push(("a release is hinted", Box::pin(self.a_release_is_hinted())));
        }
        checks
    }

    /// Takes a key that is free.
    async fn take(
        &self,
        by: &Arc<dyn LockBackend>,
        key: &str,
        term: Duration,
    ) -> Result<Grant, Failure> {
        let request = request(term);
        match by.try_grant(key, &request).await.map_err(broke("try_grant"))? {
            Attempt::Granted(grant) if grant.owner == request.owner => Ok(grant),
            Attempt::Granted(_) => Err("a grant names another owner than its request".to_owned()),
            other => Err(format!("a free key was not granted: {other:?}")),
        }
    }

    /// Takes a key that is about to be free.
    async fn take_in_the_end(
        &self,
        by: &Arc<dyn LockBackend>,
        key: &str,
    ) -> Result<Grant, Failure> {
        let started = std::time::Instant::now();
        loop {
            let request = request(LONG);
            match by.try_grant(key, &request).await.map_err(broke("try_grant"))? {
                Attempt::Granted(grant) => return Ok(grant),
                _ if started.elapsed() > self.patience => {
                    return Err("a key that is given up does not get free".to_owned());
                }
                _ => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    /// Fails if a process can take the key.
    async fn ensure_taken(&self, key: &str) -> Result<(), Failure> {
        for (who, backend) in [("the same process", &self.one), ("another process", &self.other)] {
            let request = request(LONG);
            match backend.try_grant(key, &request).await.map_err(broke("try_grant"))? {
                Attempt::Granted(_) => {
                    return Err(format!("{who} was granted a key that is taken"));
                }
                _ => continue,
            }
        }
        Ok(())
    }

    /// Releases a grant that stands.
    async fn give_back(
        &self,
        by: &Arc<dyn LockBackend>,
        key: &str,
        grant: &Grant,
    ) -> Result<(), Failure> {
        let released = by.release(key, grant).await.map_err(broke("release"))?;
        ensure(released.ours, || "a grant that stands was not released as ours".to_owned())
    }
}

impl fmt::Debug for LockConformance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockConformance").field("backend", &self.one.name()).finish_non_exhaustive()
    }
}

fn request(term: Duration) -> GrantRequest {
    GrantRequest::new(Uuid::new_v4(), "the conformance suite", term)
}

/// A key that no other check uses.
fn new_key(name: &str) -> String {
    format!("conformance {name} {}", Uuid::new_v4())
}

fn broke(call: &'static str) -> impl Fn(BackendError) -> Failure {
    move |error| format!("{call} failed: {error}")
}

fn ensure(holds: bool, why: impl FnOnce() -> Failure) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(why()) }
}
