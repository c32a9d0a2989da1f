//! One database: its address, its pool, its lanes.

use std::fmt;
use std::time::Duration;

/// How much of a commit is on the disk when it is answered. SQLite only: a server decides
/// for itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// A commit survives the loss of power.
    #[default]
    Full,
    /// A commit survives the death of the process; the loss of power may take the last ones.
    Wal,
}

/// One database and how it is used.
///
/// ```
/// use ekbatan_core::config::DataSourceConfig;
///
/// let config = DataSourceConfig::new("sqlite:wallet.db").maximum_pool_size(4);
/// assert_eq!(config.lanes, 2);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct DataSourceConfig {
    /// `sqlite:FILE` or `postgres://USER:PASSWORD@HOST:PORT/DATABASE`; `mysql://..` and
    /// `mariadb://..` are written alike.
    pub url: String,
    /// How many connections read and run transactions at most. Default 10.
    pub maximum_pool_size: usize,
    /// How many connections commit. Default 2; SQLite has one writer and so one lane.
    pub lanes: usize,
    /// How many waiting actions one lane commits together at most. Default 64.
    pub fold_limit: usize,
    /// How long to wait for a connection: to the server, and from the pool. Default 10 s.
    pub connection_timeout: Duration,
    /// How long a server may take to answer a commit before its connection counts as lost.
    /// Default 60 s.
    pub commit_timeout: Duration,
    /// How long a lane that lost its connection in a commit tries to learn what became of
    /// it, before the answer is "unknown". Default 30 s.
    pub settle_timeout: Duration,
    /// After how long the server gives up a statement. Default: the server's own.
    pub statement_timeout: Option<Duration>,
    /// The name that the server's own listing of sessions shows.
    pub application_name: String,
    /// See [`Durability`].
    pub durability: Durability,
    /// The database that holds the framework's tables on MySQL and MariaDB. Default
    /// `eventlog`.
    pub eventlog: String,
}

impl DataSourceConfig {
    /// A database by its address, with every default.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            maximum_pool_size: 10,
            lanes: 2,
            fold_limit: 64,
            connection_timeout: Duration::from_secs(10),
            commit_timeout: Duration::from_secs(60),
            settle_timeout: Duration::from_secs(30),
            statement_timeout: None,
            application_name: "ekbatan".to_owned(),
            durability: Durability::Full,
            eventlog: "eventlog".to_owned(),
        }
    }

    /// Sets [`maximum_pool_size`](Self::maximum_pool_size).
    #[must_use]
    pub fn maximum_pool_size(mut self, connections: usize) -> Self {
        self.maximum_pool_size = connections;
        self
    }

    /// Sets [`lanes`](Self::lanes).
    #[must_use]
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes;
        self
    }

    /// Sets [`fold_limit`](Self::fold_limit); 1 commits every action by itself.
    #[must_use]
    pub fn fold_limit(mut self, batches: usize) -> Self {
        self.fold_limit = batches;
        self
    }

    /// Sets [`connection_timeout`](Self::connection_timeout).
    #[must_use]
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// Sets [`commit_timeout`](Self::commit_timeout).
    #[must_use]
    pub fn commit_timeout(mut self, timeout: Duration) -> Self {
        self.commit_timeout = timeout;
        self
    }

    /// Sets [`settle_timeout`](Self::settle_timeout).
    #[must_use]
    pub fn settle_timeout(mut self, timeout: Duration) -> Self {
        self.settle_timeout = timeout;
        self
    }

    /// Sets [`statement_timeout`](Self::statement_timeout).
    #[must_use]
    pub fn statement_timeout(mut self, timeout: Duration) -> Self {
        self.statement_timeout = Some(timeout);
        self
    }

    /// Sets [`application_name`](Self::application_name).
    #[must_use]
    pub fn application_name(mut self, name: impl Into<String>) -> Self {
        self.application_name = name.into();
        self
    }

    /// Sets [`durability`](Self::durability).
    #[must_use]
    pub fn durability(mut self, durability: Durability) -> Self {
        self.durability = durability;
        self
    }

    /// Sets [`eventlog`](Self::eventlog): applications and shards that share a server may
    /// each have their own.
    #[must_use]
    pub fn eventlog(mut self, database: impl Into<String>) -> Self {
        self.eventlog = database.into();
        self
    }
}

/// Without the url: it may hold a password.
impl fmt::Debug for DataSourceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataSourceConfig")
            .field("maximum_pool_size", &self.maximum_pool_size)
            .field("lanes", &self.lanes)
            .field("fold_limit", &self.fold_limit)
            .field("connection_timeout", &self.connection_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("application_name", &self.application_name)
            .field("durability", &self.durability)
            .field("eventlog", &self.eventlog)
            .finish_non_exhaustive()
    }
}

/// Which databases an application uses.
#[derive(Debug, Clone)]
pub struct EkbatanConfig {
    pub(crate) primary: DataSourceConfig,
    pub(crate) replica: Option<DataSourceConfig>,
}

impl EkbatanConfig {
    /// One database, by its address.
    pub fn single(url: impl Into<String>) -> Self {
        Self::from(DataSourceConfig::new(url))
    }

    /// Adds a replica, which reads take only by name.
    #[must_use]
    pub fn replica(mut self, replica: DataSourceConfig) -> Self {
        self.replica = Some(replica);
        self
    }
}

impl From<DataSourceConfig> for EkbatanConfig {
    fn from(primary: DataSourceConfig) -> Self {
        Self { primary, replica: None }
    }
}
