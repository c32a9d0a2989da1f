//! A connection to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::stream::{Config, Info};
use async_nats::jetstream::{self, Context};
use ekbatan_relay::{PUBLISH_TIME, RelayTerms};

use crate::denials::Denials;
use crate::error::NatsError;
use crate::settings::{NewStream, Settings};

/// The duplicate window of streams that are created, if it is long enough. It is the server's default.
const WINDOW: Duration = Duration::from_secs(120);

/// A connection, until it is lost or a message was not answered.
pub(crate) struct NatsConnection {
    client: async_nats::Client,
    pub(crate) jetstream: Context,
    pub(crate) denials: Arc<Denials>,
    is_over: AtomicBool,
}

impl NatsConnection {
    pub(crate) async fn connect(settings: &Settings) -> Result<Self, NatsError> {
        let denials = Arc::new(Denials::default());
        let noted = denials.clone();
        let options = settings.options().await?.event_callback(move |event| {
            noted.note(&event);
            std::future::ready(())
        });
        let connecting = options.connect(settings.addresses());
        let client = match tokio::time::timeout(settings.ack_timeout, connecting).await {
            Ok(client) => client.map_err(NatsError::Connect)?,
            Err(_) => return Err(NatsError::Silent(settings.ack_timeout)),
        };
        let jetstream = jetstream::context::ContextBuilder::new()
            .timeout(settings.ack_timeout)
            .backpressure_on_inflight(true)
            .build(client.clone());
        Ok(Self { client, jetstream, denials, is_over: AtomicBool::new(false) })
    }

    /// Lets the next one be opened.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_usable(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed) && self.client.connection_state() == State::Connected
    }

    /// The greatest message that the server takes.
    pub(crate) fn max_payload(&self) -> usize {
        self.client.max_payload()
    }

    /// What the server knows of the stream.
    pub(crate) async fn stream(&self, name: &str) -> Result<Info, NatsError> {
        let found = self.jetstream.get_stream(name).await;
        let stream =
            found.map_err(|source| NatsError::NoStream { stream: name.to_owned(), source })?;
        Ok(stream.cached_info().clone())
    }

    /// The stream, which is created if the settings say so.
    pub(crate) async fn stream_or_new(
        &self,
        settings: &Settings,
        needed: Duration,
    ) -> Result<Info, NatsError> {
        let name = &settings.stream;
        let Some(NewStream { subjects, replicas }) = &settings.create else {
            return self.stream(name).await;
        };
        if let Ok(info) = self.stream(name).await {
            return Ok(info);
        }
        let config = Config {
            name: name.clone(),
            subjects: subjects.clone(),
            num_replicas: *replicas,
            duplicate_window: needed.max(WINDOW),
            ..Config::default()
        };
        let created = self.jetstream.get_or_create_stream(config).await;
        let stream =
            created.map_err(|source| NatsError::Create { stream: name.clone(), source })?;
        tracing::info!(stream = %name, subjects = ?subjects, "a stream was created");
        Ok(stream.cached_info().clone())
    }
}

/// For how long after the stream has stored a message it may be sent again. The message waits for the others
/// of its batch to be marked, and a relay drops the batch after twice [`PUBLISH_TIME`]. Then the relay is
/// opened again after the longest pause; or its node dies, and another one takes over after at most one and
/// a half leases.
pub(crate) fn horizon(terms: RelayTerms, ack_timeout: Duration) -> Duration {
    let unmarked = PUBLISH_TIME.saturating_mul(2);
    let lease = terms.lease.saturating_mul(3) / 2;
    let opened = lease.saturating_add(terms.longest_pause);
    unmarked.saturating_add(opened).saturating_add(ack_timeout)
}

/// Fails if the stream cannot keep what a relay promises.
pub(crate) fn check_stream(info: &Info, needed: Duration) -> Result<(), NatsError> {
    let Config { name, duplicate_window: window, no_ack, .. } = &info.config;
    if *no_ack {
        return Err(NatsError::NoAck(name.clone()));
    }
    if *window < needed {
        return Err(NatsError::Window { stream: name.clone(), window: *window, needed });
    }
    Ok(())
}
