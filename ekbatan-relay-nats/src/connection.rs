//! A connection to the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::stream::{Config, DiscardPolicy, Info, RetentionPolicy};
use async_nats::jetstream::{self, Context};
use ekbatan_relay::{PUBLISH_TIME, RelayTerms};

use crate::denials::Denials;
use crate::error::NatsError;
use crate::settings::Settings;

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
        let Some(subjects) = &settings.create else { return self.stream(name).await };
        if let Ok(info) = self.stream(name).await {
            return Ok(info);
        }
        let config = Config {
            name: name.clone(),
            subjects: subjects.clone(),
            num_replicas: settings.replicas,
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
    let Config { name, duplicate_window: window, no_ack, retention, .. } = &info.config;
    if *no_ack {
        return Err(NatsError::NoAck(name.clone()));
    }
    if *retention == RetentionPolicy::Interest && info.state.consumer_count == 0 {
        return Err(NatsError::NoConsumer(name.clone()));
    }
    if *window < needed {
        return Err(NatsError::Window { stream: name.clone(), window: *window, needed });
    }
    Ok(())
}

/// Warns if the stream makes room by dropping messages that nobody may have received.
pub(crate) fn warn_of_drops(stream: &Config) {
    let limits = dropping_limits(stream);
    if !limits.is_empty() {
        tracing::warn!(
            stream = %stream.name, ?limits,
            "a full stream drops its oldest events, also those that nobody has received; with `discard: new` it refuses further ones, and the relay waits"
        );
    }
}

/// The limits at which the stream drops its oldest messages.
fn dropping_limits(stream: &Config) -> Vec<&'static str> {
    let is_old = stream.discard == DiscardPolicy::Old;
    let of_subject = is_old || !stream.discard_new_per_subject;
    let limits = [
        ("max_msgs", stream.max_messages, is_old),
        ("max_bytes", stream.max_bytes, is_old),
        ("max_msgs_per_subject", stream.max_messages_per_subject, of_subject),
    ];
    let dropping = limits.into_iter().filter(|(_, most, drops)| *drops && *most > 0);
    dropping.map(|(name, ..)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_drops_messages_unless_the_stream_refuses_new_ones() {
        let limits = Config {
            max_messages: 20,
            max_bytes: 1 << 20,
            max_messages_per_subject: 5,
            ..Config::default()
        };
        assert_eq!(dropping_limits(&limits), ["max_msgs", "max_bytes", "max_msgs_per_subject"]);
        let new = Config { discard: DiscardPolicy::New, ..limits };
        assert_eq!(dropping_limits(&new), ["max_msgs_per_subject"]);
        let new = Config { discard_new_per_subject: true, ..new };
        assert!(dropping_limits(&new).is_empty());
        let unlimited = Config { max_messages: -1, max_bytes: -1, ..Config::default() };
        assert!(dropping_limits(&unlimited).is_empty());
    }
}
