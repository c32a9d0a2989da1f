//! The statements that are sent to a running server.

use std::path::PathBuf;
use std::str::FromStr;

use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{AssertSqlSafe, Connection};

use crate::database_url::DatabaseUrl;
use crate::server::{ServerError, fresh_name};

/// Creates a database with a unique name and returns its URL.
pub(super) async fn create_database(server: &DatabaseUrl) -> Result<String, ServerError> {
    let name = fresh_name();
    // A fresh name needs no quoting.
    run(server, format!("CREATE DATABASE {name}")).await?;
    Ok(server.clone().with_database(&name).to_string())
}

async fn run(server: &DatabaseUrl, sql: String) -> Result<(), ServerError> {
    let mut connection = connect(server).await?;
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await?;
    Ok(connection.close().await?)
}

/// The data folder that the server reports, if it accepts connections.
pub(super) async fn data_folder(server: &DatabaseUrl) -> Option<PathBuf> {
    let mut connection = connect(server).await.ok()?;
    let folder: String =
        sqlx::query_scalar("SELECT @@datadir").fetch_one(&mut connection).await.ok()?;
    connection.close().await.ok()?;
    Some(PathBuf::from(folder))
}

/// The port of a URL.
pub(super) fn port_of(server: &DatabaseUrl) -> Result<u16, ServerError> {
    Ok(MySqlConnectOptions::from_str(&server.to_string())?.get_port())
}

async fn connect(server: &DatabaseUrl) -> Result<MySqlConnection, sqlx::Error> {
    MySqlConnection::connect(&server.to_string()).await
}
