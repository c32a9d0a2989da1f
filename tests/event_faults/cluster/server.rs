//! The server of the three shards. No other test uses it.

use ekbatan_testkit::{MariaDbServer, MySqlServer, PostgresServer, TempSqlite};
use support::Dialect;

use crate::accounts::SHARDS;

pub enum Server {
    Files { _files: Vec<TempSqlite> },
    Postgres(PostgresServer),
    MySql(MySqlServer),
    MariaDb(MariaDbServer),
}

impl Server {
    /// Starts a server, and returns the URLs of three databases on it.
    pub async fn start(dialect: Dialect) -> (Self, [String; SHARDS]) {
        let mut urls = Vec::new();
        let server = match dialect {
            Dialect::Sqlite => {
                let files: Vec<_> = (0..SHARDS).map(|_| TempSqlite::new().unwrap()).collect();
                urls.extend(files.iter().map(TempSqlite::url));
                Self::Files { _files: files }
            }
            Dialect::Postgres => {
                // What the server has written survives it: the operating system keeps it.
                let server = PostgresServer::builder()
                    .setting("synchronous_commit", "on")
                    .setting("max_connections", "200")
                    .start()
                    .await
                    .unwrap();
                for _ in 0..SHARDS {
                    urls.push(server.create_database().await.unwrap());
                }
                Self::Postgres(server)
            }
            Dialect::MySql => {
                let server = MySqlServer::start().await.unwrap();
                for _ in 0..SHARDS {
                    urls.push(server.create_database().await.unwrap());
                }
                Self::MySql(server)
            }
            Dialect::MariaDb => {
                let server = MariaDbServer::start().await.unwrap();
                for _ in 0..SHARDS {
                    urls.push(server.create_database().await.unwrap());
                }
                Self::MariaDb(server)
            }
        };
        (server, urls.try_into().unwrap())
    }

    pub async fn kill(&self) {
        let killed = match self {
            Self::Files { .. } => unreachable!("files have no server"),
            Self::Postgres(server) => server.kill().await,
            Self::MySql(server) => server.kill().await,
            Self::MariaDb(server) => server.kill().await,
        };
        killed.unwrap();
    }

    pub async fn restart(&self) {
        let restarted = match self {
            Self::Files { .. } => unreachable!("files have no server"),
            Self::Postgres(server) => server.restart().await,
            Self::MySql(server) => server.restart().await,
            Self::MariaDb(server) => server.restart().await,
        };
        restarted.unwrap();
    }
}
