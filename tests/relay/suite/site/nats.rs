//! NATS JetStream: a private server with one stream.

use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::stream::{Config, DiscardPolicy, RawMessageErrorKind, Stream};
use ekbatan::relay::NatsBroker;
use ekbatan_testkit::NatsServer;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::{Address, Limits, Received, SharedBroker, Site};

pub const STREAM: &str = "events";

/// How long a test waits for the server, which a busy machine may hold up.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a relay waits for the server. With the usual lease the window of the stream is still long
/// enough.
const ACK_TIMEOUT: Duration = Duration::from_secs(20);

/// The same if the test kills the server: a relay waits as long for what is lost then.
const SHORT_ACK_TIMEOUT: Duration = Duration::from_secs(2);

/// A private server with one stream.
pub struct NatsSite {
    pub server: NatsServer,
    dies: bool,
}

impl NatsSite {
    pub async fn start(limits: Limits) -> Self {
        let mut builder = NatsServer::builder();
        if let Some(bytes) = limits.bytes {
            // The headers take room, too.
            builder = builder.setting("max_payload", (bytes + 1_500).to_string());
        }
        if limits.denies {
            let user = "{user: all, password: all, permissions: {publish: {deny: [\"nobody.>\"]}}}";
            builder = builder.setting("authorization", format!("{{users: [{user}]}}"));
            builder = builder.setting("no_auth_user", "all");
        }
        let site = Self { server: builder.start().await.unwrap(), dies: limits.dies };
        let config = Config {
            name: STREAM.to_owned(),
            subjects: vec!["ekbatan.>".to_owned()],
            max_messages: limits.messages.map_or(-1, |most| most as i64),
            discard: DiscardPolicy::New,
            duplicate_window: Duration::from_secs(120),
            ..Config::default()
        };
        site.jetstream().await.create_stream(config).await.unwrap();
        site
    }

    pub async fn jetstream(&self) -> async_nats::jetstream::Context {
        let options =
            ConnectOptions::new().connection_timeout(PATIENCE).request_timeout(Some(PATIENCE));
        async_nats::jetstream::new(options.connect(self.server.url()).await.unwrap())
    }

    pub async fn stream(&self) -> Stream {
        self.jetstream().await.get_stream(STREAM).await.unwrap()
    }
}

impl Site for NatsSite {
    fn broker(&self) -> SharedBroker {
        let ack_timeout = if self.dies { SHORT_ACK_TIMEOUT } else { ACK_TIMEOUT };
        broker(&self.server.url(), ack_timeout)
    }

    fn received(&self) -> BoxFuture<'_, Vec<Received>> {
        async {
            let stream = self.stream().await;
            let state = &stream.cached_info().state;
            let mut received = Vec::new();
            // An empty stream names 0, which is no message.
            for sequence in state.first_sequence.max(1)..=state.last_sequence {
                let message = match stream.get_raw_message(sequence).await {
                    Ok(message) => message,
                    Err(error) if error.kind() == RawMessageErrorKind::NoMessageFound => continue,
                    Err(error) => panic!("message {sequence}: {error:?}"),
                };
                let headers = message.headers.iter().flat_map(|(name, values)| {
                    values.iter().map(move |value| (name.to_string(), value.to_string()))
                });
                let topic = message.subject.to_string();
                received.push(Received::new(topic, headers.collect(), &message.payload));
            }
            received
        }
        .boxed()
    }

    fn kill(&self) -> BoxFuture<'_, ()> {
        async { self.server.kill().await.unwrap() }.boxed()
    }

    fn restart(&self) -> BoxFuture<'_, ()> {
        async { self.server.restart().await.unwrap() }.boxed()
    }

    fn make_room(&self) -> BoxFuture<'_, ()> {
        async {
            let stream = self.stream().await;
            let config = Config { max_messages: -1, ..stream.cached_info().config.clone() };
            self.jetstream().await.update_stream(config).await.unwrap();
        }
        .boxed()
    }

    fn address(&self) -> Address {
        Address::Nats(self.server.url())
    }

    fn receive_nobodys_topic(&self) -> BoxFuture<'_, ()> {
        async {
            let mut config = self.stream().await.cached_info().config.clone();
            config.subjects.push(self.nobodys_topic());
            self.jetstream().await.update_stream(config).await.unwrap();
        }
        .boxed()
    }
}

/// The broker of another process.
pub fn connect(url: &str) -> SharedBroker {
    broker(url, ACK_TIMEOUT)
}

fn broker(url: &str, ack_timeout: Duration) -> SharedBroker {
    SharedBroker::new(NatsBroker::new(url, STREAM).ack_timeout(ack_timeout))
}
