//! Login and encryption settings take effect on a real PostgreSQL server.

use ekbatan::prelude::{Databases, EkbatanConfig};
use ekbatan_testkit::PostgresServer;

/// A password with characters that need quoting.
const PASSWORD: &str = "s3:cr@t/?%20#";

/// A server that requires a password from the user `app`, and a database on it.
async fn server() -> (PostgresServer, String) {
    let server = PostgresServer::start().await.unwrap();
    let admin_url = server.create_database().await.unwrap();
    let database = admin_url.rsplit('/').next().unwrap().to_owned();
    let admin = Databases::open(&admin_url).await.unwrap();
    let mut connection = admin.postgres().await.unwrap();
    let rules = "host all app all scram-sha-256\\nhost all all all trust\\nlocal all all trust";
    let (hba,): (String,) =
        sqlx::query_as("SHOW hba_file").fetch_one(connection.connection().unwrap()).await.unwrap();
    for statement in [
        format!("CREATE ROLE app LOGIN PASSWORD '{PASSWORD}'"),
        // The server itself writes its rules of authentication, one on a line.
        format!("COPY (SELECT regexp_split_to_table(E'{rules}', E'\\n')) TO '{hba}'"),
        "SELECT pg_reload_conf()".to_owned(),
    ] {
        sqlx::raw_sql(sqlx::AssertSqlSafe(statement))
            .execute(connection.connection().unwrap())
            .await
            .unwrap();
    }
    drop(connection);
    admin.close().await;
    let url = format!("postgres://127.0.0.1:{}/{database}", server.port());
    (server, url)
}

fn config(url: &str, keys: &str, password: &str) -> EkbatanConfig {
    let yaml = format!(
        "ekbatan: {{configs: {{primary-config: {{url: '{url}', username: app, connection-timeout: 60s, {keys}}}}}}}"
    );
    let variables = [("EKBATAN_CONFIGS_PRIMARY_CONFIG_PASSWORD", password)];
    EkbatanConfig::loader().yaml(yaml).env_from(variables).load().unwrap()
}

async fn refusal(config: &EkbatanConfig) -> String {
    match Databases::connect(config).await {
        Ok(_) => panic!("the connection should be refused"),
        Err(error) => format!("{error} {error:?}"),
    }
}

#[tokio::test]
async fn the_configured_user_password_and_encryption_are_used() {
    let (server, url) = server().await;

    let databases = Databases::connect(&config(&url, "tls-mode: prefer", PASSWORD)).await.unwrap();
    let mut connection = databases.postgres().await.unwrap();
    let (user,): (String,) = sqlx::query_as("SELECT current_user::text")
        .fetch_one(connection.connection().unwrap())
        .await
        .unwrap();
    assert_eq!(user, "app");
    drop(connection);
    databases.close().await;

    let wrong = refusal(&config(&url, "lanes: 1", "hunter2")).await;
    assert!(wrong.contains("password") && !wrong.contains("hunter2"), "{wrong}");

    // The server has no certificate, so a connection that requires encryption fails.
    let unencrypted = refusal(&config(&url, "tls-mode: require", PASSWORD)).await;
    assert!(unencrypted.to_lowercase().contains("tls"), "{unencrypted}");
    assert!(!unencrypted.contains(PASSWORD), "{unencrypted}");
    drop(server);
}
