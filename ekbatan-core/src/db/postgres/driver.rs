//! Opens sessions on a PostgreSQL server.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use async_trait::async_trait;
use sqlx::postgres::{PgConnectOptions, PgConnection, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _};

use super::connection::{NOTICES_A_LOST_CLIENT, PostgresConnection};
use super::doorbell::PostgresDoorbell;
use super::{error, syntax};
use crate::config::{
    DataSourceConfig, ExposeSecret, LONGEST_TIMEOUT, TlsMode, certificate_files, names_tls_mode,
    with_effect_only,
};
use crate::db::doorbell_session::DoorbellSession;
use crate::db::{Capabilities, Connection, DbError, DbErrorKind, Dialect, Driver, Route, Syntax};

const CAPABILITIES: Capabilities = Capabilities {
    dialect: Dialect::Postgres,
    max_lanes: None,
    single_writer: false,
    isolation_levels: true,
    names_constraints: true,
    atomic_migrations: true,
    folds_reads: true,
};

/// The server probes an idle connection after 60 s, six times. So it ends the session of a client
/// that is gone, and no firewall on the way forgets the connection. sqlx offers no such setting for
/// the client's end; the timeouts of reads, of commits and of lanes find a server that is gone.
const KEEPALIVE: [(&str, &str); 3] = [
    ("tcp_keepalives_idle", "60"),
    ("tcp_keepalives_interval", "10"),
    ("tcp_keepalives_count", "6"),
];

/// How many prepared statements a session keeps. A statement that commits takes up to a megabyte
/// of the server's memory; sqlx closes the one that was not used for the longest time.
const PREPARED: usize = 250;

/// The sqlx connection of a connection of this dialect.
pub(crate) fn raw(connection: &mut dyn Connection) -> Option<&mut PgConnection> {
    connection.as_any().downcast_mut::<PostgresConnection>().map(|own| &mut own.inner)
}

/// Opens connections to a PostgreSQL server, and to its replica if there is one.
pub(crate) struct PostgresDriver {
    primary: Server,
    replica: Option<Server>,
}

/// How a server is reached.
struct Server {
    options: PgConnectOptions,
    /// Without the login.
    address: String,
    /// The files of certificates.
    files: Vec<PathBuf>,
    connect_timeout: Duration,
}

impl Server {
    fn new(config: &DataSourceConfig) -> Result<Self, DbError> {
        let options = options(config)?;
        let (host, port) = (options.get_host(), options.get_port());
        let database = options.get_database().unwrap_or_default();
        let address = format!("postgres://{host}:{port}/{database}");
        let is_socket = options.get_socket().is_some() || host.starts_with('/');
        let files = if is_socket { Vec::new() } else { certificate_files(config) };
        Ok(Self { address, files, options, connect_timeout: config.connection_timeout })
    }
}

impl PostgresDriver {
    pub(crate) fn new(
        primary: &DataSourceConfig,
        replica: Option<&DataSourceConfig>,
    ) -> Result<Self, DbError> {
        let replica = replica.map(Server::new).transpose()?;
        Ok(Self { primary: Server::new(primary)?, replica })
    }
}

fn options(config: &DataSourceConfig) -> Result<PgConnectOptions, DbError> {
    let url = with_effect_only(&config.url, Dialect::Postgres);
    let mut options = PgConnectOptions::from_str(&url)
        .map_err(|e| {
            DbError::new(
                DbErrorKind::Other,
                format!("the url of the database is not understood: {e}"),
            )
        })?
        .application_name(&config.application_name)
        .statement_cache_capacity(PREPARED)
        // Without generic plans, a statement over arrays is planned on every call, which costs a
        // third of its speed. All sessions are in UTC.
        .options([("plan_cache_mode", "force_generic_plan"), ("TimeZone", "UTC")])
        .options(KEEPALIVE)
        .disable_statement_logging();
    if let Some(username) = &config.username {
        options = options.username(username);
    }
    if let Some(password) = &config.password {
        options = options.password(password.expose_secret());
    }
    options = with_tls_mode(options, config);
    if let Some(file) = &config.tls_root_cert {
        options = options.ssl_root_cert(file);
    }
    if let Some(timeout) = config.statement_timeout {
        options = options
            .options([("statement_timeout", timeout.min(LONGEST_TIMEOUT).as_millis().to_string())]);
    }
    Ok(options)
}

/// Without a mode in the key or the address, the options have the mode of the variable `PGSSLMODE`, which could
/// turn encryption off.
fn with_tls_mode(options: PgConnectOptions, config: &DataSourceConfig) -> PgConnectOptions {
    let mode = match config.tls_mode {
        None if names_tls_mode(&config.url) => return options,
        mode => mode.unwrap_or(TlsMode::Prefer),
    };
    options.ssl_mode(match mode {
        TlsMode::Disable => PgSslMode::Disable,
        TlsMode::Prefer => PgSslMode::Prefer,
        TlsMode::Require => PgSslMode::Require,
        TlsMode::VerifyCa => PgSslMode::VerifyCa,
        TlsMode::VerifyFull => PgSslMode::VerifyFull,
    })
}

#[async_trait]
impl Driver for PostgresDriver {
    fn capabilities(&self) -> &Capabilities {
        &CAPABILITIES
    }

    fn syntax(&self) -> &dyn Syntax {
        &syntax::PostgresSyntax
    }

    async fn connect(&self, route: Route) -> Result<Box<dyn Connection>, DbError> {
        let server = match route {
            Route::Replica => self.replica.as_ref().unwrap_or(&self.primary),
            Route::Primary => &self.primary,
        };
        let connecting = async {
            let mut connection = PgConnection::connect_with(&server.options).await?;
            let prepare = format!(
                "SELECT pid || ' ' || extract(epoch FROM backend_start), {NOTICES_A_LOST_CLIENT} \
                 FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            );
            let (identity, _): (String, Option<String>) =
                sqlx::query_as(AssertSqlSafe(prepare)).fetch_one(&mut connection).await?;
            Ok((connection, identity))
        };
        match tokio::time::timeout(server.connect_timeout, connecting).await {
            Ok(Ok((connection, identity))) => {
                Ok(Box::new(PostgresConnection::new(connection, identity)))
            }
            Ok(Err(error)) => Err(error::at_connect(error, &server.address, &server.files)),
            Err(_) => Err(DbError::new(
                DbErrorKind::Unavailable,
                format!("{} did not answer within {:?}", server.address, server.connect_timeout),
            )),
        }
    }

    async fn doorbell(&self, listens: bool) -> Result<Option<Box<dyn DoorbellSession>>, DbError> {
        let Server { options, connect_timeout, .. } = &self.primary;
        let opening = PostgresDoorbell::open(options, listens, *connect_timeout);
        Ok(Some(Box::new(opening.await?)))
    }

    fn address(&self) -> &str {
        &self.primary.address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As if the variable `PGSSLMODE` were `disable`.
    fn mode(config: &DataSourceConfig) -> PgSslMode {
        let url = with_effect_only(&config.url, Dialect::Postgres);
        let options = if names_tls_mode(&url) {
            PgConnectOptions::from_str(&url).unwrap()
        } else {
            PgConnectOptions::new_without_pgpass().ssl_mode(PgSslMode::Disable)
        };
        with_tls_mode(options, config).get_ssl_mode()
    }

    #[test]
    fn the_environment_turns_no_encryption_off() {
        let config = DataSourceConfig::new;
        for (config, expected) in [
            (config("postgres://h/d"), PgSslMode::Prefer),
            (config("postgres://h/d?x=sslmode"), PgSslMode::Prefer),
            (config("postgres://h/d?sslmode=require"), PgSslMode::Require),
            (config("postgres://h/d?ssl%2Dmode=verify-ca"), PgSslMode::VerifyCa),
            (config("postgres://h/d?sslmode=disable"), PgSslMode::Disable),
            (
                config("postgres://h/d?sslmode=disable").tls_mode(TlsMode::VerifyFull),
                PgSslMode::VerifyFull,
            ),
        ] {
            let found = mode(&config);
            assert!(
                std::mem::discriminant(&found) == std::mem::discriminant(&expected),
                "{}: {found:?}",
                config.url
            );
        }
    }
}
