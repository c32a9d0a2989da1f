//! Where the servers of the cluster are, as its masters say.

use super::calls::Client;
use super::error::CallError;
use super::service::Service;
use crate::messages::rpc::{
    GetActiveMasterResponse, GetMetaRegionLocationsResponse, NoParameters, ServerName,
};
use prost::Message;

impl Client {
    /// Sends a request to the active master.
    pub(crate) async fn master<A>(
        &self,
        method: &str,
        request: &impl Message,
    ) -> Result<A, CallError>
    where
        A: Message + Default,
    {
        let active = self
            .ask_each("GetActiveMaster", |answer: GetActiveMasterResponse| {
                answer.server_name.as_ref().and_then(server)
            })
            .await?;
        self.call(&active, Service::Master, method, request).await
    }

    /// The server that knows where regions are.
    pub(super) async fn meta_server(&self) -> Result<String, CallError> {
        self.ask_each("GetMetaRegionLocations", |answer: GetMetaRegionLocationsResponse| {
            let mut locations = answer.meta_locations.iter();
            locations.find_map(|location| location.server_name.as_ref().and_then(server))
        })
        .await
    }

    /// Asks the servers of the configuration, one after the other, until one knows.
    async fn ask_each<A, T>(
        &self,
        method: &str,
        read: impl Fn(A) -> Option<T>,
    ) -> Result<T, CallError>
    where
        A: Message + Default,
    {
        let mut failure = None;
        for asked in self.address().servers() {
            match self.call(asked, Service::Registry, method, &NoParameters {}).await {
                Ok(answer) => match read(answer) {
                    Some(found) => return Ok(found),
                    None => {
                        let why = "it knows no active master of its cluster yet".to_owned();
                        failure
                            .get_or_insert(CallError::Unreachable { server: asked.clone(), why });
                    }
                },
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        Err(failure.unwrap_or_else(|| {
            let why = "no server is named".to_owned();
            CallError::Unreachable { server: String::new(), why }
        }))
    }
}

/// `host:port` of a server.
pub(super) fn server(name: &ServerName) -> Option<String> {
    Some(format!("{}:{}", name.host_name, name.port?))
}
