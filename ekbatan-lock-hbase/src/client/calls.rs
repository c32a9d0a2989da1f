//! The connections to the servers of a cluster, and calls over them.
//!
//! Invariants: there is at most one connection in use for each service of each server, whatever the
//! number of requests. A call that gets no connection or no answer in time fails, and the next call
//! uses a new connection. A request that broke off is sent once more: every request may be sent
//! twice. If that fails as well, the error says that the first one may have had its effect. A client
//! that is closed stays closed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use tokio::sync::OnceCell;
use tokio::time::timeout;

use super::connection::Connection;
use super::error::CallError;
use super::known_regions::Regions;
use super::service::{ANSWER, Service};
use crate::address::Address;

#[derive(Default)]
struct Connections {
    /// By server, `host:port`, and service. One that is not open yet is opened by its first caller.
    open: HashMap<(String, Service), Arc<OnceCell<Connection>>>,
    closed: bool,
}

pub(crate) struct Client {
    address: Address,
    connections: Mutex<Connections>,
    pub(super) regions: Regions,
}

impl Client {
    /// A client, which connects with the first call. Needs a Tokio runtime.
    pub(crate) fn new(address: Address) -> Self {
        Self { address, connections: Mutex::default(), regions: Regions::default() }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request to a service of a server, `host:port`.
    pub(crate) async fn call<A>(
        &self,
        server: &str,
        service: Service,
        method: &str,
        request: &impl Message,
    ) -> Result<A, CallError>
    where
        A: Message + Default,
    {
        let first = match self.call_once(server, service, method, request).await {
            Err(error @ CallError::Cut { .. }) => error,
            answer => return answer,
        };
        tracing::debug!(error = ?first, method, "a request broke off and is sent once more");
        let again = self.call_once(server, service, method, request).await;
        again.map_err(|error| CallError::AfterEffect(Box::new(error)))
    }

    async fn call_once<A>(
        &self,
        server: &str,
        service: Service,
        method: &str,
        request: &impl Message,
    ) -> Result<A, CallError>
    where
        A: Message + Default,
    {
        let connection = self.connection(server, service)?;
        let opening =
            || Connection::open(server, self.address.reached(server), service, self.address.user());
        // If opening fails, the callers that wait try it one after the other; none waits for all others.
        let Ok(open) = timeout(ANSWER, connection.get_or_try_init(opening)).await else {
            let why = format!("no connection within {ANSWER:?}");
            return Err(CallError::Unreachable { server: server.to_owned(), why });
        };
        let open = open?;
        let answer = open.call(method, request).await;
        if matches!(answer, Err(CallError::Silent { .. })) || open.ended().is_some() {
            self.replace(server, service, &connection);
        }
        answer
    }

    /// The connection to a service, which may not be open yet.
    fn connection(
        &self,
        server: &str,
        service: Service,
    ) -> Result<Arc<OnceCell<Connection>>, CallError> {
        let mut connections = self.connections();
        if connections.closed {
            let why = "the locks were closed here".to_owned();
            return Err(CallError::Unreachable { server: server.to_owned(), why });
        }
        let known = connections.open.entry((server.to_owned(), service)).or_default();
        if known.get().is_some_and(|open| open.ended().is_some()) {
            *known = Arc::default();
        }
        Ok(known.clone())
    }

    /// Has the next call use a new connection, unless another caller has replaced this one.
    fn replace(&self, server: &str, service: Service, replaced: &Arc<OnceCell<Connection>>) {
        let open = &mut self.connections().open;
        let key = (server.to_owned(), service);
        if open.get(&key).is_some_and(|known| Arc::ptr_eq(known, replaced)) {
            open.remove(&key);
        }
    }

    /// Closes the connections that only the start and a move of regions need.
    pub(crate) fn close_unused(&self) {
        self.connections().open.retain(|(_, service), _| *service == Service::Rows);
    }

    /// Closes all connections. Later calls fail.
    pub(crate) fn close(&self) {
        *self.connections() = Connections { open: HashMap::new(), closed: true };
    }
}

#[cfg(test)]
mod tests {
    use ekbatan_core::config::DataSourceConfig;
    use ekbatan_lock::FailureKind;
    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::Effect;
    use crate::messages::rpc::NoParameters;

    async fn listening() -> (TcpListener, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap().to_string();
        (listener, server)
    }

    fn client(server: &str) -> Client {
        let config = DataSourceConfig::new(format!("hbase://{server}"));
        Client::new(Address::of(&config).unwrap())
    }

    async fn called(client: &Client, server: &str) -> CallError {
        let answer = client.call::<NoParameters>(server, Service::Rows, "Multi", &NoParameters {});
        answer.await.unwrap_err()
    }

    #[tokio::test]
    async fn a_request_that_was_sent_before_may_have_had_its_effect() {
        let (listener, server) = listening().await;
        let client = client(&server);
        let breaking = async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            // The listener ends first, so that no second connection is accepted.
            drop(listener);
            assert!(stream.read(&mut [0; 512]).await.unwrap() > 0, "the greeting arrives");
        };
        let (error, ()) = tokio::join!(called(&client, &server), breaking);
        assert!(matches!(error.last(), CallError::Unreachable { .. }), "{error:?}");
        assert!(error.leaves_doubt());
        assert_eq!(error.of(Effect::Possible).kind(), FailureKind::InDoubt);
        let never_sent = called(&client, &server).await;
        assert!(!never_sent.leaves_doubt(), "{never_sent:?}");
        assert_eq!(never_sent.of(Effect::Possible).kind(), FailureKind::Unavailable);
    }

    #[tokio::test]
    async fn a_closed_client_opens_no_connection() {
        let (listener, server) = listening().await;
        let client = client(&server);
        client.close();
        let error = called(&client, &server).await;
        assert!(matches!(error, CallError::Unreachable { .. }), "{error:?}");
        let accepted = timeout(std::time::Duration::from_millis(50), listener.accept()).await;
        assert!(accepted.is_err());
    }
}
