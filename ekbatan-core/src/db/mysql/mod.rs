//! MySQL and MariaDB: a commit is one packet of several statements, and so one round trip.
//!
//! One driver in two flavours. The url's scheme says which one is meant, the server says
//! which one it is, and the two must agree. Where they differ (types, a few settings), the
//! difference is told by `Flavour` and nowhere else.

mod commit;
mod connection;
mod decode;
mod error;
mod fence;
#[cfg(test)]
mod guide;
mod literal;
mod options;
mod order;
mod placeholders;
mod session;
mod statement;
mod syntax;

use std::sync::Arc;

use async_trait::async_trait;

pub use self::options::server_options;
use self::session::Opener;
use self::syntax::MySqlSyntax;
use super::{Capabilities, Connection, DbError, Driver, Route, Syntax};
use crate::config::DataSourceConfig;
use connection::MySqlLink;

/// Which of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flavour {
    MySql,
    MariaDb,
}

impl Flavour {
    /// Asks how far a primary has come.
    fn position(self) -> &'static str {
        match self {
            Flavour::MySql => "SELECT @@GLOBAL.gtid_executed",
            Flavour::MariaDb => "SELECT @@GLOBAL.gtid_binlog_pos",
        }
    }

    /// Asks whether a replica has come so far, if need be after waiting for it.
    fn has_reached(self) -> &'static str {
        match self {
            Flavour::MySql => {
                "SELECT IF(GTID_SUBSET(?, @@GLOBAL.gtid_executed), 1, WAIT_FOR_EXECUTED_GTID_SET(?, ?) = 0)"
            }
            Flavour::MariaDb => {
                "SELECT IF(MASTER_GTID_WAIT(?, 0) = 0, 1, MASTER_GTID_WAIT(?, ?) = 0)"
            }
        }
    }
}

const MYSQL: Capabilities = Capabilities {
    name: "mysql",
    max_lanes: None,
    single_writer: false,
    isolation_levels: true,
    names_constraints: true,
    atomic_migrations: false,
};

const MARIADB: Capabilities = Capabilities { name: "mariadb", ..MYSQL };

/// The sqlx connection behind one of ours, if it is of this dialect.
pub(crate) fn raw(connection: &mut dyn Connection) -> Option<&mut sqlx::MySqlConnection> {
    connection.as_any().downcast_mut::<MySqlLink>().map(|own| &mut own.inner)
}

/// Opens connections to a MySQL or MariaDB server, and to its replica if there is one.
pub(crate) struct MySqlDriver {
    primary: Arc<Opener>,
    replica: Option<Arc<Opener>>,
    syntax: Arc<MySqlSyntax>,
    migration_source: String,
}

impl MySqlDriver {
    pub(crate) fn new(
        primary: &DataSourceConfig,
        replica: Option<&DataSourceConfig>,
    ) -> Result<Self, DbError> {
        session::check_eventlog(&primary.eventlog)?;
        let opener = Opener::new(primary)?;
        let replica = replica.map(Opener::new).transpose()?.map(Arc::new);
        let syntax = MySqlSyntax { flavour: opener.flavour(), eventlog: primary.eventlog.clone() };
        Ok(Self {
            migration_source: format!("application:{}", opener.database()),
            primary: Arc::new(opener),
            replica,
            syntax: Arc::new(syntax),
        })
    }
}

#[async_trait]
impl Driver for MySqlDriver {
    fn capabilities(&self) -> &Capabilities {
        match self.syntax.flavour {
            Flavour::MySql => &MYSQL,
            Flavour::MariaDb => &MARIADB,
        }
    }

    fn syntax(&self) -> &dyn Syntax {
        &*self.syntax
    }

    async fn connect(&self, route: Route) -> Result<Box<dyn Connection>, DbError> {
        let opener = match route {
            Route::Replica => self.replica.as_ref().unwrap_or(&self.primary),
            Route::Primary => &self.primary,
        };
        Ok(Box::new(MySqlLink::open(opener.clone(), self.syntax.clone()).await?))
    }

    fn address(&self) -> &str {
        self.primary.address()
    }

    fn migration_source(&self) -> &str {
        &self.migration_source
    }
}
