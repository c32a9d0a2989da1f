//! The handle of a server of any kind.
//!
//! Invariants: a call returns only after its effect. A call whose future is dropped
//! leaves a server that can be killed, restarted and dropped.

use std::env;
use std::fs;
use std::sync::{Arc, Mutex};

use tokio::task::spawn_blocking;

use super::error::ServerError;
use super::instance::Instance;
use super::product::Product;
use super::startup::{SharedInstance, run_blocking, wait_until_ready};
use crate::database_url::DatabaseUrl;

/// Maximum number of ports on which to try to start a server.
const LAUNCHES: usize = 5;

/// A private server, or a running one that the environment names.
#[derive(Debug)]
pub(crate) struct Handle<P> {
    url: DatabaseUrl,
    port: u16,
    /// `None` for a server that was not started here.
    instance: Option<SharedInstance<P>>,
}

impl<P: Product> Handle<P> {
    /// Starts a private server. `product` finds its programs, on a blocking thread.
    pub(crate) async fn start(
        product: impl FnOnce() -> Result<P, ServerError> + Send + 'static,
    ) -> Result<Self, ServerError> {
        let instance = spawn_blocking(|| Instance::create(product()?)).await??;
        let instance = Arc::new(Mutex::new(instance));
        let mut launches = LAUNCHES;
        loop {
            let port = run_blocking(&instance, |instance| {
                instance.launch()?;
                Ok(instance.env().port())
            })
            .await?;
            let url = P::url(port);
            let error = match wait_until_ready(&instance, &url).await {
                Ok(()) => return Ok(Self { url, port, instance: Some(instance) }),
                Err(error) => error,
            };
            launches -= 1;
            let ended = launches > 0 && matches!(error, ServerError::Ended { .. });
            // Another process may have taken the port in the meantime.
            if !ended || !run_blocking(&instance, Instance::change_taken_port).await? {
                return Err(error);
            }
        }
    }

    /// The server that the environment variable names, if it is set.
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

    /// The product of a private server.
    pub(crate) async fn product(&self) -> Result<P, ServerError>
    where
        P: Clone,
    {
        run_blocking(self.instance()?, |instance| Ok(instance.product().clone())).await
    }

    pub(crate) async fn log(&self) -> Result<String, ServerError> {
        run_blocking(self.instance()?, |instance| Ok(instance.whole_log())).await
    }

    pub(crate) async fn kill(&self) -> Result<(), ServerError> {
        run_blocking(self.instance()?, Instance::kill).await
    }

    /// Removes the data folder of a server that does not run.
    pub(crate) async fn lose_data(&self) -> Result<(), ServerError> {
        run_blocking(self.instance()?, |instance| {
            let data = instance.env().data();
            fs::remove_dir_all(&data).map_err(ServerError::unusable(&data))
        })
        .await
    }

    pub(crate) async fn restart(&self) -> Result<(), ServerError> {
        let instance = self.instance()?;
        run_blocking(instance, |instance| {
            instance.shut_down()?;
            instance.launch()
        })
        .await?;
        wait_until_ready(instance, &self.url).await
    }

    pub(crate) async fn stop(self) -> Result<(), ServerError> {
        Ok(spawn_blocking(move || drop(self)).await?)
    }

    fn instance(&self) -> Result<&SharedInstance<P>, ServerError> {
        self.instance.as_ref().ok_or(ServerError::NotOurs { variable: P::SHARED_URL })
    }
}
