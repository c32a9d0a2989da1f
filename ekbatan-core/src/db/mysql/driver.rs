//! Opens sessions on a MySQL or MariaDB server.

use std::sync::Arc;

use async_trait::async_trait;

use super::connection::MySqlConnection;
use super::flavour::Flavour;
use super::session::{SessionFactory, check_eventlog};
use super::syntax::MySqlSyntax;
use crate::config::DataSourceConfig;
use crate::db::{Capabilities, Connection, DbError, Dialect, Driver, Route, Syntax};

const MYSQL: Capabilities = Capabilities {
    dialect: Dialect::MySql,
    max_lanes: None,
    single_writer: false,
    isolation_levels: true,
    names_constraints: true,
    atomic_migrations: false,
    folds_reads: true,
};

const MARIADB: Capabilities = Capabilities { dialect: Dialect::MariaDb, ..MYSQL };

/// The sqlx connection of a connection of this dialect.
pub(crate) fn raw(connection: &mut dyn Connection) -> Option<&mut sqlx::MySqlConnection> {
    connection.as_any().downcast_mut::<MySqlConnection>().map(|own| &mut own.inner)
}

pub(crate) struct MySqlDriver {
    primary: Arc<SessionFactory>,
    replica: Option<Arc<SessionFactory>>,
    syntax: Arc<MySqlSyntax>,
    migration_source: String,
}

impl MySqlDriver {
    pub(crate) fn new(
        primary: &DataSourceConfig,
        replica: Option<&DataSourceConfig>,
    ) -> Result<Self, DbError> {
        check_eventlog(&primary.eventlog)?;
        let sessions = SessionFactory::new(primary)?;
        let replica = replica.map(SessionFactory::new).transpose()?.map(Arc::new);
        let syntax =
            MySqlSyntax { flavour: sessions.flavour(), eventlog: primary.eventlog.clone() };
        Ok(Self {
            migration_source: format!("application:{}", sessions.database()),
            primary: Arc::new(sessions),
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
        let sessions = match route {
            Route::Replica => self.replica.as_ref().unwrap_or(&self.primary),
            Route::Primary => &self.primary,
        };
        Ok(Box::new(MySqlConnection::open(sessions.clone(), self.syntax.clone()).await?))
    }

    fn address(&self) -> &str {
        self.primary.address()
    }

    fn migration_source(&self) -> &str {
        &self.migration_source
    }
}
