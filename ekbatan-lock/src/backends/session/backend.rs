//! The backend over one session of a server.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::actor::{Actor, Common};
use super::request::{Forced, Reply, Requests, SessionRequest, reply_of};
use super::server::SessionServer;
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, Released};

/// Time between checks whether a session that was told to end has ended.
const CHECK: Duration = Duration::from_millis(10);

/// Maximum time until a session that was told to end has ended.
const END: Duration = Duration::from_secs(15);

/// Grants keys as locks of one session.
///
/// When the session ends, every lease on it is lost. The next request opens a new session. If the
/// actor has ended with its runtime, that request starts another actor, in the runtime of its caller.
pub(crate) struct SessionBackend<S: SessionServer> {
    common: Arc<Common<S>>,
    channel: Mutex<Channel>,
}

/// Sends requests to the actor.
struct Channel {
    requests: Requests,
    /// Whether the backend was closed. Then no other actor is started.
    closed: bool,
}

impl<S: SessionServer> SessionBackend<S> {
    pub(crate) async fn open(server: S) -> Result<Self, S::Error> {
        let session = server.open().await?;
        let common = Arc::new(Common::new(server, &session));
        let requests = Actor::start(&common, Some(session));
        Ok(Self { common, channel: Mutex::new(Channel { requests, closed: false }) })
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends requests to an actor that lives, unless the backend was closed.
    fn requests(&self) -> Requests {
        let mut channel = self.channel();
        if channel.requests.is_closed() && !channel.closed {
            channel.requests = Actor::start(&self.common, None);
        }
        channel.requests.clone()
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> SessionRequest,
    ) -> Result<T, BackendError> {
        let (reply, replied) = oneshot::channel();
        let (request, requests) = (request(reply), self.requests());
        let current = self.common.current();
        let handled = if S::grants(&current).is_over() {
            Err(request)
        } else {
            self.common.server.handle_directly(&current, request, &requests)
        };
        match handled {
            Ok(work) => work.await,
            // If the actor has ended meanwhile, there is no reply.
            Err(for_actor) => drop(requests.send(for_actor)),
        }
        reply_of(replied, &requests).await
    }
}

#[async_trait]
impl<S: SessionServer> LockBackend for SessionBackend<S> {
    fn name(&self) -> &'static str {
        S::NAME
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let (key, request) = (key.to_owned(), request.clone());
        let outcome = self.ask(|reply| SessionRequest::Take { key, request, reply }).await?;
        Ok(outcome.claim())
    }

    /// Asks nothing of the server. The next ping tells it how long the session may be idle, and
    /// notices a session that does not answer.
    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        Ok(S::grants(&self.common.current()).extend(S::lock_of(key), grant, term))
    }

    /// The terms are those of this process, so no request for one comes late.
    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.extend(key, grant, term).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let (key, grant) = (key.to_owned(), *grant);
        self.ask(|reply| SessionRequest::Release { key, grant, reply: Some(reply) }).await
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let key = key.to_owned();
        self.ask(|reply| SessionRequest::Inspect { key, reply }).await
    }

    async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        self.common.server.list(&self.common.current(), prefixes, most).await
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        let begun = Instant::now();
        let mut ending = None;
        loop {
            let (key, seen) = (key.to_owned(), *seen);
            match self.ask(|reply| SessionRequest::Force { key, seen, ending, reply }).await? {
                Forced::Free(ended) => return Ok(ended),
                Forced::Ending(session) if begun.elapsed() > END => {
                    return Err(BackendError::new(format!(
                        "session {session}, which holds the key, was told to end and has not \
                         ended within {END:?}; see {} for what it does",
                        S::SESSION_LIST
                    )));
                }
                Forced::Ending(session) => ending = Some(session),
            }
            tokio::time::sleep(CHECK).await;
        }
    }

    async fn freed(&self, key: &str) {
        self.common.server.freed(key).await;
    }

    async fn lost(&self, key: &str, grant: &Grant) -> String {
        let current = self.common.current();
        let grants = S::grants(&current);
        // In this order: a session that ends in between has held the key.
        if grants.is_valid(&S::lock_of(key), grant) || grants.is_over() {
            return grants.ended().await;
        }
        "the present session does not hold the key".to_owned()
    }

    fn poll_interval(&self) -> Duration {
        S::POLL_INTERVAL
    }

    fn give_way(&self) -> Duration {
        S::GIVE_WAY
    }

    async fn close(&self) {
        let (reply, closed) = oneshot::channel();
        let requests = {
            let mut channel = self.channel();
            channel.closed = true;
            channel.requests.clone()
        };
        if requests.send(SessionRequest::Close { reply }).is_ok() {
            tokio::select! {
                _ = closed => {}
                () = requests.closed() => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;
    use futures_util::future::join_all;
    use uuid::Uuid;

    use super::*;
    use crate::FailureKind;
    use crate::backends::session::{ReleaseRequest, SessionGrants, TakeRequest};

    /// How long opening a session takes that fails.
    const SILENCE: Duration = Duration::from_secs(15);

    /// A server that accepts `1 + more` sessions, and is silent afterwards. The first session answers
    /// nothing.
    struct Silent {
        attempts: AtomicUsize,
        more: usize,
        /// The kind of the error.
        fails: FailureKind,
    }

    impl Default for Silent {
        fn default() -> Self {
            Self { attempts: AtomicUsize::new(0), more: 0, fails: FailureKind::Unavailable }
        }
    }

    type Grants = Arc<SessionGrants<String>>;

    impl SessionServer for Silent {
        const NAME: &'static str = "silent";
        const PING: Duration = Duration::from_secs(3_600);
        const POLL_INTERVAL: Duration = Duration::from_secs(1);
        const GIVE_WAY: Duration = Duration::ZERO;
        const SESSION_LIST: &'static str = "nothing";

        type Lock = String;
        type Session = Grants;
        type Shared = Grants;
        type Error = BackendError;

        fn lock_of(key: &str) -> String {
            key.to_owned()
        }

        async fn open(&self) -> Result<Grants, BackendError> {
            if self.attempts.fetch_add(1, Ordering::SeqCst) <= self.more {
                return Ok(Arc::new(SessionGrants::new()));
            }
            tokio::time::sleep(SILENCE).await;
            let cause = std::io::Error::other("no answer");
            Err(BackendError::caused("opening a session", cause).of_kind(self.fails))
        }

        fn reopening(error: BackendError) -> BackendError {
            error
        }

        fn shared(session: &Grants) -> Grants {
            session.clone()
        }

        fn grants(shared: &Grants) -> &SessionGrants<String> {
            shared
        }

        async fn take(&self, _: &mut Grants, _: Vec<TakeRequest>, _: &Requests) {}

        async fn release(&self, _: &mut Grants, _: Vec<ReleaseRequest>, _: &Requests) {}

        async fn handle(&self, _: &mut Grants, request: SessionRequest, _: &Requests) {
            if self.attempts.load(Ordering::SeqCst) == 1 {
                std::future::pending::<()>().await;
            }
            if let SessionRequest::Inspect { reply, .. } = request {
                let _ = reply.send(Ok(None));
            }
        }

        async fn ping(&self, _: &mut Grants) {}

        async fn close(&self, _: Grants, _: &str) {}

        async fn list(
            &self,
            _: &Grants,
            _: &[String],
            _: usize,
        ) -> Result<Vec<(String, Holder)>, BackendError> {
            Ok(Vec::new())
        }
    }

    async fn silent() -> SessionBackend<Silent> {
        let backend = SessionBackend::open(Silent::default()).await.unwrap();
        backend.common.current().end("a test".to_owned());
        backend
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_wait_for_a_session_share_one_attempt_to_open_it() {
        for takes in [true, false] {
            let backend = silent().await;
            let begun = tokio::time::Instant::now();
            let taking = async {
                if takes {
                    let request = GrantRequest::new(Uuid::new_v4(), "a test", SILENCE);
                    backend.try_grant("k", &request).await.map(drop)
                } else {
                    backend.inspect("k").await.map(drop)
                }
            };
            let inspecting = join_all((0..20).map(|_| backend.inspect("k")));
            let (taken, inspected) = tokio::join!(taking, inspecting);
            assert_eq!(taken.unwrap_err().kind(), FailureKind::Unavailable);
            for refused in inspected {
                assert_eq!(refused.unwrap_err().kind(), FailureKind::Unavailable);
            }
            assert!(begun.elapsed() < SILENCE * 2, "{:?}", begun.elapsed());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn every_request_hears_why_the_session_could_not_be_opened() {
        use FailureKind::{InDoubt, Refused, Unavailable};
        // Nothing was sent, so there is no doubt.
        for (fails, heard) in [(Refused, Refused), (InDoubt, Unavailable)] {
            let server = Silent { fails, ..Silent::default() };
            let backend = SessionBackend::open(server).await.unwrap();
            backend.common.current().end("a test".to_owned());
            for answer in join_all((0..3).map(|_| backend.inspect("k"))).await {
                let error = answer.unwrap_err();
                assert_eq!(error.kind(), heard);
                assert_eq!(error.to_string(), "opening a session: no answer");
                assert!(std::error::Error::source(&error).is_some(), "it has its cause");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_opened_for_callers_that_have_gone() {
        let backend = silent().await;
        assert!(backend.inspect("k").now_or_never().is_none());
        let request = GrantRequest::new(Uuid::new_v4(), "a test", SILENCE);
        assert!(backend.try_grant("k", &request).now_or_never().is_none());
        backend.close().await;
        assert_eq!(backend.common.server.attempts.load(Ordering::SeqCst), 1);
        assert_eq!(backend.inspect("k").await.unwrap_err().kind(), FailureKind::Unavailable);
    }

    #[tokio::test]
    async fn a_session_that_ends_with_its_runtime_is_replaced() {
        let (opened, opening) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        let other = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.unwrap().block_on(async {
                let server = Silent { more: 1, ..Silent::default() };
                let _ = opened.send(SessionBackend::open(server).await.unwrap());
                ended.await.unwrap();
            });
        });
        let backend = opening.await.unwrap();
        let request = GrantRequest::new(Uuid::new_v4(), "a test", SILENCE);
        let session = backend.common.current();
        assert!(session.begin_take("held".to_owned(), &request));
        let grant = session.granted("held".to_owned(), &request, 7).unwrap();
        let mut asked = backend.inspect("k");
        assert!((&mut asked).now_or_never().is_none());
        end.send(()).unwrap();
        assert_eq!(asked.await.unwrap_err().kind(), FailureKind::Unavailable);
        let why = backend.lost("held", &grant).await;
        assert!(why.contains("runtime"), "{why}");
        assert_eq!(backend.inspect("k").await.unwrap(), None);
        assert!(!backend.extend("held", &grant, SILENCE).await.unwrap());
        backend.close().await;
        assert_eq!(backend.inspect("k").await.unwrap_err().kind(), FailureKind::Unavailable);
        other.join().unwrap();
    }
}
