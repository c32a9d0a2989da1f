//! What only NATS does: its client takes no login from an address.

use std::time::Duration;

use ekbatan::relay::{Broker, NatsBroker, RelayTerms};
use ekbatan_testkit::{NatsServer, NatsServerBuilder};

/// Whether a relay to this address may use the server.
async fn checked(url: &str) -> Result<(), String> {
    let broker = NatsBroker::new(url, "s").create_stream(["a.>"]);
    let terms = RelayTerms::of_lease(Duration::from_secs(15));
    Broker::check(&broker, terms).await.map_err(|error| format!("{error:?}"))
}

async fn server(authorization: &str) -> NatsServer {
    let builder: NatsServerBuilder = NatsServer::builder();
    builder.setting("authorization", authorization).start().await.unwrap()
}

fn with_login(server: &NatsServer, login: &str) -> String {
    server.url().replace("nats://", &format!("nats://{login}@"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_in_the_address_is_used() {
    let with_password = server(r#"{user: me, password: "p@ss,word"}"#).await;
    checked(&with_login(&with_password, "me:p%40ss%2Cword")).await.unwrap();
    let refused = checked(&with_login(&with_password, "me:wrong")).await.unwrap_err();
    assert!(refused.to_lowercase().contains("authorization"), "{refused}");
    assert!(!refused.contains("wrong"), "{refused}");
    checked(&with_password.url()).await.unwrap_err();

    let with_token = server(r#"{token: "a token"}"#).await;
    checked(&with_login(&with_token, "a%20token")).await.unwrap();
    checked(&with_login(&with_token, "another")).await.unwrap_err();
}
