//! The connections to the servers of a cluster, and calls over them.
//!
//! Invariants: there is at most one connection in use for each service of each server, whatever the
//! number of requests. A call that gets no answer in time fails, and the next call uses a new
//! connection. A request that broke off is sent once more: every request may be sent twice.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prost::Message;
use tokio::sync::OnceCell;

use super::connection::Connection;
use super::error::CallError;
use super::known_regions::Regions;
use super::service::Service;
use crate::address::Address;

/// By server, `host:port`, and service. One that is not open yet is opened by its first caller.
type Connections = HashMap<(String, Service), Arc<OnceCell<Connection>>>;

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
        let mut resent = false;
        loop {
            let connection = self.connection(server, service);
            let opening = || {
                Connection::open(server, self.address.reached(server), service, self.address.user())
            };
            let open = connection.get_or_try_init(opening).await?;
            let error = match open.call(method, request).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if matches!(error, CallError::Silent { .. }) || open.ended().is_some() {
                self.replace(server, service, &connection);
            }
            if !matches!(error, CallError::Cut { .. }) || resent {
                return Err(error);
            }
            resent = true;
        }
    }

    /// The connection to a service, which may not be open yet.
    fn connection(&self, server: &str, service: Service) -> Arc<OnceCell<Connection>> {
        let mut connections = self.connections();
        let known = connections.entry((server.to_owned(), service)).or_default();
        if known.get().is_some_and(|open| open.ended().is_some()) {
            *known = Arc::default();
        }
        known.clone()
    }

    /// Has the next call use a new connection, unless another caller has replaced this one.
    fn replace(&self, server: &str, service: Service, replaced: &Arc<OnceCell<Connection>>) {
        let mut connections = self.connections();
        let key = (server.to_owned(), service);
        if connections.get(&key).is_some_and(|known| Arc::ptr_eq(known, replaced)) {
            connections.remove(&key);
        }
    }

    /// Closes the connections that only the start and a move of regions need.
    pub(crate) fn close_unused(&self) {
        self.connections().retain(|(_, service), _| *service == Service::Rows);
    }

    /// Closes all connections.
    pub(crate) fn close(&self) {
        self.connections().clear();
    }
}
