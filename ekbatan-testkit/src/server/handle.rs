//! What tests hold of a server, whatever its kind.
//!
//! What always holds: no call returns before what it asked for has come about,
//! and one that is given up halfway leaves a server that can be killed, restarted
//! and dropped like any other.

use std::env;
use std::sync::{Arc, Mutex};

use tokio::task::spawn_blocking;

use super::instance::Instance;
use super::waiting::{SharedInstance, accepts, on_its_thread};
use super::{Product, ServerError};
use crate::database_url::DatabaseUrl;

/// On how many ports to try to start a server.
const LAUNCHES: usize = 5;

/// A server that was started here, or one that was there already.
#[derive(Debug)]
pub(crate) struct Handle<P> {
    url: DatabaseUrl,
    port: u16,
    /// None for a server that belongs to somebody else.
    instance: Option<SharedInstance<P>>,
}

impl<P: Product> Handle<P> {
    /// Starts a private server, of which `product` looks for the programs.
    pub(crate) async fn start(
        product: impl FnOnce() -> Result<P, ServerError> + Send + 'static,
    ) -> Result<Self, ServerError> {
        let instance = spawn_blocking(|| Instance::create(product()?)).await??;
        let instance = Arc::new(Mutex::new(instance));
        let mut launches = LAUNCHES;
        loop {
            let port = on_its_thread(&instance, |instance| {
                instance.launch()?;
                Ok(instance.place().port())
            })
            .await?;
            let url = P::url(port);
            let error = match accepts(&instance, &url).await {
                Ok(()) => return Ok(Self { url, port, instance: Some(instance) }),
                Err(error) => error,
            };
            launches -= 1;
            let ended = launches > 0 && matches!(error, ServerError::Ended { .. });
            // Somebody else may have been quicker to use the port.
            if !ended || !on_its_thread(&instance, Instance::evade).await? {
                return Err(error);
            }
        }
    }

    /// The server that the environment names, if it does.
    pub(crate) fn given() -> Result<Option<Self>, ServerError> {
        let variable = P::SHARED_URL;
        let Some(text) = env::var_os(variable).filter(|url| !url.is_empty()) else {
            return Ok(None);
        };
        let text = text.to_string_lossy().into_owned();
        let url: Result<DatabaseUrl, _> = text.parse();
        let url =
            url.map_err(|_| ServerError::Url { variable, url: text, example: P::EXAMPLE_URL })?;
        Ok(Some(Self { port: P::port_of(&url)?, url, instance: None }))
    }

    pub(crate) fn url(&self) -> &DatabaseUrl {
        &self.url
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn is_private(&self) -> bool {
        self.instance.is_some()
    }

    /// What a private server is made from.
    pub(crate) async fn product(&self) -> Result<P, ServerError>
    where
        P: Clone,
    {
        on_its_thread(self.instance()?, |instance| Ok(instance.product().clone())).await
    }

    pub(crate) async fn kill(&self) -> Result<(), ServerError> {
        on_its_thread(self.instance()?, Instance::kill).await
    }

    pub(crate) async fn restart(&self) -> Result<(), ServerError> {
        let instance = self.instance()?;
        on_its_thread(instance, |instance| {
            instance.shut_down()?;
            instance.launch()
        })
        .await?;
        accepts(instance, &self.url).await
    }

    pub(crate) async fn stop(self) -> Result<(), ServerError> {
        Ok(spawn_blocking(move || drop(self)).await?)
    }

    fn instance(&self) -> Result<&SharedInstance<P>, ServerError> {
        self.instance.as_ref().ok_or(ServerError::NotOurs { variable: P::SHARED_URL })
    }
}
