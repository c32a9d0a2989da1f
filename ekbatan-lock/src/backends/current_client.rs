//! The client over which a backend sends its requests to a server, and the one that replaces it when
//! the server falls silent.
//!
//! Invariants: every client is opened and closed in the runtime in which the first one was opened. A
//! client runs tasks in the runtime that opens it, and they end with that runtime, which may be a
//! caller's and short. Without that runtime no request is sent. A client over which a later request was
//! answered is not replaced. A client that is closed stays closed.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::task::AbortHandle;
use tokio::time::{Instant, timeout};

use crate::BackendError;

/// Connects and disconnects the clients of a backend, for a [`CurrentClient`].
#[async_trait]
pub trait ClientFactory: Send + Sync + 'static {
    /// A handle of a client. A clone is the same client.
    type Client: Clone + Send + Sync + 'static;

    /// The name of the server, for messages.
    const SERVER: &'static str;

    /// Maximum time for the server to answer a request.
    const ANSWER: Duration;

    /// Opens a client.
    async fn connect(&self) -> Result<Self::Client, BackendError>;

    /// Closes the connections of a client, and ends its tasks.
    async fn disconnect(client: Self::Client);
}

/// The client that requests use at present. A client that is dropped is closed.
pub struct CurrentClient<C: ClientFactory> {
    shared: Arc<Shared<C>>,
}

struct Shared<C: ClientFactory> {
    factory: C,
    runtime: Handle,
    /// A task that ends with the runtime, which its handle does not tell.
    sentinel: AbortHandle,
    current: Mutex<Current<C::Client>>,
    /// One permit for each connection of a client. Closed with the client.
    permits: Semaphore,
}

struct Current<T> {
    client: T,
    generation: u64,
    /// Whether another client is about to replace it.
    replacing: bool,
    /// When it last answered a request; at first, when it was opened.
    answered: Instant,
}

/// The client of one request, and the permit to use one of its connections.
pub struct RequestClient<'c, T> {
    client: T,
    generation: u64,
    began: Instant,
    _permit: SemaphorePermit<'c>,
}

impl<T: Clone> RequestClient<'_, T> {
    /// The client.
    pub fn client(&self) -> T {
        self.client.clone()
    }
}

impl<C: ClientFactory> CurrentClient<C> {
    /// Opens the first client. At most `connections` requests use the client at a time.
    ///
    /// # Errors
    ///
    /// The error of [`ClientFactory::connect`].
    pub async fn open(factory: C, connections: usize) -> Result<Self, BackendError> {
        let client = factory.connect().await?;
        let answered = Instant::now();
        let current = Current { client, generation: 0, replacing: false, answered };
        let permits = Semaphore::new(connections.clamp(1, Semaphore::MAX_PERMITS));
        let (runtime, current) = (Handle::current(), Mutex::new(current));
        let sentinel = runtime.spawn(std::future::pending::<()>()).abort_handle();
        Ok(Self { shared: Arc::new(Shared { factory, runtime, sentinel, current, permits }) })
    }

    /// The runtime of the clients.
    pub fn runtime(&self) -> &Handle {
        &self.shared.runtime
    }

    /// Checks that the runtime of the clients lives.
    ///
    /// # Errors
    ///
    /// It has ended. No request can be sent.
    pub fn check_runtime(&self) -> Result<(), BackendError> {
        if self.shared.sentinel.is_finished() {
            return Err(BackendError::unavailable(format!(
                "{}: the runtime in which the locks were opened has ended",
                C::SERVER
            )));
        }
        Ok(())
    }

    /// The client, for what needs no permit.
    ///
    /// # Errors
    ///
    /// The runtime of the clients has ended.
    pub fn client(&self) -> Result<C::Client, BackendError> {
        self.check_runtime()?;
        Ok(self.shared.current().client.clone())
    }

    /// The client for one request, when a connection is free.
    ///
    /// # Errors
    ///
    /// The request was not sent: no connection was free in time, the client is closed, or the runtime of
    /// the clients has ended.
    pub async fn for_request(&self) -> Result<RequestClient<'_, C::Client>, BackendError> {
        let server = C::SERVER;
        match timeout(C::ANSWER, self.shared.permits.acquire()).await {
            Ok(Ok(permit)) => {
                self.check_runtime()?;
                let current = self.shared.current();
                let (client, generation) = (current.client.clone(), current.generation);
                Ok(RequestClient { client, generation, began: Instant::now(), _permit: permit })
            }
            Ok(Err(_)) => {
                Err(BackendError::unavailable(format!("{server}: the locks were closed")))
            }
            Err(_) => Err(BackendError::unavailable(format!(
                "{server}: no connection was free within {:?}; maximum-pool-size may be too small",
                C::ANSWER
            ))),
        }
    }

    /// Notes that the server has answered a request. Of a client that was replaced meanwhile, this says
    /// nothing about the present one.
    pub fn answered(&self, request: &RequestClient<'_, C::Client>) {
        let mut current = self.shared.current();
        if current.generation == request.generation {
            current.answered = Instant::now();
        }
    }

    /// Notes that the server has not answered a request in time. Replaces the client of the request,
    /// unless it was replaced already, or answered another request since this one began.
    pub fn unanswered(&self, request: &RequestClient<'_, C::Client>) {
        let mut current = self.shared.current();
        let is_used = current.generation == request.generation && !self.shared.permits.is_closed();
        if !is_used || current.answered > request.began || current.replacing {
            return;
        }
        current.replacing = true;
        // A runtime that has ended drops the task at once, which locks the client.
        drop(current);
        let guard = ReplacementGuard(self.shared.clone());
        self.shared.runtime.spawn(async move { guard.replace().await });
    }

    /// Closes the client. Later requests fail. Waits at most [`ClientFactory::ANSWER`]; a task closes the
    /// rest.
    pub async fn close(&self) {
        let client = {
            let current = self.shared.current();
            self.shared.permits.close();
            current.client.clone()
        };
        let closing = self.shared.runtime.spawn(async move { C::disconnect(client).await });
        if timeout(C::ANSWER, closing).await.is_err() {
            tracing::debug!(server = C::SERVER, "closing the client takes longer");
        }
    }
}

impl<C: ClientFactory> Shared<C> {
    fn current(&self) -> MutexGuard<'_, Current<C::Client>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C: ClientFactory> Drop for Shared<C> {
    fn drop(&mut self) {
        self.sentinel.abort();
        if self.permits.is_closed() {
            return;
        }
        let client = self.current().client.clone();
        self.runtime.spawn(async move { C::disconnect(client).await });
    }
}

/// Clears `replacing` when it is dropped.
struct ReplacementGuard<C: ClientFactory>(Arc<Shared<C>>);

impl<C: ClientFactory> ReplacementGuard<C> {
    async fn replace(self) {
        let shared = &self.0;
        let opened = shared.factory.connect().await;
        let unused = opened.map(|client| {
            let mut current = shared.current();
            if shared.permits.is_closed() {
                return client;
            }
            current.generation += 1;
            current.answered = Instant::now();
            std::mem::replace(&mut current.client, client)
        });
        // The next one may be replaced while this one is closed.
        drop(self);
        match unused {
            Ok(unused) => C::disconnect(unused).await,
            Err(error) => tracing::debug!(%error, "a client of locks was not replaced"),
        }
    }
}

impl<C: ClientFactory> Drop for ReplacementGuard<C> {
    fn drop(&mut self) {
        self.0.current().replacing = false;
    }
}

impl<C: ClientFactory> fmt::Debug for CurrentClient<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CurrentClient").field("server", &C::SERVER).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for RequestClient<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestClient").field("began", &self.began).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Id;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    /// What becomes of a client.
    #[derive(Debug, PartialEq)]
    enum Event {
        Opened(Id),
        Closed(Id),
    }

    struct Counted(UnboundedSender<Event>);

    #[async_trait]
    impl ClientFactory for Counted {
        type Client = UnboundedSender<Event>;
        const SERVER: &'static str = "A server";
        const ANSWER: Duration = Duration::from_secs(5);

        async fn connect(&self) -> Result<Self::Client, BackendError> {
            drop(self.0.send(Event::Opened(Handle::current().id())));
            Ok(self.0.clone())
        }

        async fn disconnect(client: Self::Client) {
            drop(client.send(Event::Closed(Handle::current().id())));
        }
    }

    async fn opened() -> (Arc<CurrentClient<Counted>>, UnboundedReceiver<Event>) {
        let (events, mut heard) = unbounded_channel();
        let client = CurrentClient::open(Counted(events), 2).await.unwrap();
        let here = Handle::current().id();
        assert_eq!(heard.recv().await, Some(Event::Opened(here)));
        (Arc::new(client), heard)
    }

    /// Runs a future on a runtime that ends with it.
    async fn elsewhere<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
        let thread = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work)
        });
        tokio::task::spawn_blocking(|| thread.join().unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn clients_live_in_the_runtime_of_the_first_one() {
        let (client, mut heard) = opened().await;
        let here = Handle::current().id();
        let of_caller = client.clone();
        elsewhere(async move {
            let request = of_caller.for_request().await.unwrap();
            of_caller.unanswered(&request);
        })
        .await;
        assert_eq!(heard.recv().await, Some(Event::Opened(here)));
        assert_eq!(heard.recv().await, Some(Event::Closed(here)));
        let of_caller = client.clone();
        elsewhere(async move { of_caller.close().await }).await;
        assert_eq!(heard.recv().await, Some(Event::Closed(here)));
        assert!(client.for_request().await.is_err());
        drop(client);
        assert_eq!(heard.recv().await, None, "a client is closed once");
    }

    #[tokio::test]
    async fn a_client_that_is_dropped_elsewhere_is_closed_in_its_own_runtime() {
        let (client, mut heard) = opened().await;
        std::thread::spawn(|| drop(client)).join().unwrap();
        assert_eq!(heard.recv().await, Some(Event::Closed(Handle::current().id())));
    }

    #[tokio::test]
    async fn no_request_is_sent_once_the_runtime_of_the_clients_has_ended() {
        let (client, _heard) = elsewhere(opened()).await;
        let (request, unlimited) = (client.for_request().await, client.client());
        for error in [request.unwrap_err(), unlimited.unwrap_err()] {
            assert_eq!(error.kind(), crate::FailureKind::Unavailable);
            assert!(error.to_string().contains("the runtime in which the locks"), "{error}");
        }
        timeout(Counted::ANSWER, client.close()).await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_is_dropped_leaves_no_task_behind() {
        let (client, mut heard) = opened().await;
        let sentinel = client.shared.sentinel.clone();
        assert!(!sentinel.is_finished());
        drop(client);
        assert!(matches!(heard.recv().await, Some(Event::Closed(_))));
        assert_eq!(heard.recv().await, None);
        assert!(sentinel.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_is_replaced_once_and_only_if_nothing_was_answered() {
        let (client, mut heard) = opened().await;
        let [one, other] =
            [client.for_request().await.unwrap(), client.for_request().await.unwrap()];
        tokio::time::advance(Duration::from_secs(1)).await;
        client.answered(&other);
        client.unanswered(&one);
        tokio::task::yield_now().await;
        assert!(heard.try_recv().is_err(), "the server answers another request");
        drop((one, other));
        let [one, other] =
            [client.for_request().await.unwrap(), client.for_request().await.unwrap()];
        client.unanswered(&one);
        client.unanswered(&other);
        assert!(matches!(heard.recv().await, Some(Event::Opened(_))));
        assert!(matches!(heard.recv().await, Some(Event::Closed(_))));
        client.unanswered(&other);
        tokio::task::yield_now().await;
        assert!(heard.try_recv().is_err(), "it was replaced already");
    }

    #[tokio::test(start_paused = true)]
    async fn a_late_answer_to_the_client_before_keeps_no_silent_one() {
        let (client, mut heard) = opened().await;
        let late = client.for_request().await.unwrap();
        client.unanswered(&late);
        assert!(matches!(heard.recv().await, Some(Event::Opened(_))));
        assert!(matches!(heard.recv().await, Some(Event::Closed(_))));
        let request = client.for_request().await.unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        client.answered(&late);
        client.unanswered(&request);
        let next = timeout(Counted::ANSWER, heard.recv()).await;
        assert!(matches!(next, Ok(Some(Event::Opened(_)))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_gets_no_connection_was_not_sent() {
        let (client, _heard) = opened().await;
        let _all = [client.for_request().await.unwrap(), client.for_request().await.unwrap()];
        let error = client.for_request().await.unwrap_err();
        assert_eq!(error.kind(), crate::FailureKind::Unavailable);
        assert!(error.to_string().contains("maximum-pool-size"), "{error}");
    }

    struct Silent;

    #[async_trait]
    impl ClientFactory for Silent {
        type Client = ();
        const SERVER: &'static str = "A silent server";
        const ANSWER: Duration = Duration::from_secs(5);

        async fn connect(&self) -> Result<(), BackendError> {
            Ok(())
        }

        async fn disconnect((): ()) {
            std::future::pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closing_does_not_wait_for_a_silent_server() {
        CurrentClient::open(Silent, 1).await.unwrap().close().await;
    }
}
