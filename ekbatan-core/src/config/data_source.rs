//! One database: its address, its pool, its lanes.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::LockConfig;
use super::address::{self, Dialect};

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

/// Whether a connection is encrypted, and how the server's certificate is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsMode {
    /// Never encrypted.
    Disable,
    /// Encrypted if the server can.
    Prefer,
    /// Encrypted; the certificate is not looked at.
    Require,
    /// Encrypted, and the certificate stems from a trusted authority.
    VerifyCa,
    /// Encrypted, and the certificate is that of the host.
    VerifyFull,
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
    /// `sqlite:FILE`, `postgres://HOST:PORT/DATABASE`, `mysql://..` or `mariadb://..`; a
    /// user and a password may stand before the host.
    pub url: String,
    /// The user, if the url names none.
    pub username: Option<String>,
    /// The password, if the url holds none; may be empty.
    pub password: Option<SecretString>,
    /// Whether connections are encrypted. Default: what the url says, or [`TlsMode::Prefer`].
    pub tls_mode: Option<TlsMode>,
    /// The file of certificates that the server's has to stem from.
    pub tls_root_cert: Option<PathBuf>,
    /// How many connections read and run transactions at most. Default 10.
    pub maximum_pool_size: usize,
    /// How many of them are kept open, even when nobody needs them. Default 0.
    pub minimum_idle: usize,
    /// After how long an unused connection is closed; zero for never. Default 10 minutes.
    pub idle_timeout: Duration,
    /// After how long a connection is replaced, however busy it is; zero for never. Default
    /// 30 minutes.
    pub max_lifetime: Duration,
    /// From when on a held connection is reported; zero for never, which is the default.
    pub leak_detection_threshold: Duration,
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
    /// What locks that live here are like; of the slot `lock-config` alone.
    pub locks: LockConfig,
}

impl DataSourceConfig {
    /// A database by its address, with every default.
    pub fn new(url: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            username: None,
            password: None,
            tls_mode: None,
            tls_root_cert: None,
            maximum_pool_size: 10,
            minimum_idle: 0,
            idle_timeout: Duration::from_secs(10 * 60),
            max_lifetime: Duration::from_secs(30 * 60),
            leak_detection_threshold: Duration::ZERO,
            lanes: 2,
            fold_limit: 64,
            connection_timeout: Duration::from_secs(10),
            commit_timeout: Duration::from_secs(60),
            settle_timeout: Duration::from_secs(30),
            statement_timeout: None,
            application_name: "ekbatan".to_owned(),
            durability: Durability::Full,
            eventlog: "eventlog".to_owned(),
            locks: LockConfig::default(),
        }
    }

    /// Which SQL the database speaks, by the scheme of its url; none for addresses of other
    /// kinds, such as Redis.
    pub fn dialect(&self) -> Option<Dialect> {
        address::dialect(&self.url)
    }

    /// The url with its password as `***`, for messages.
    pub fn shown_url(&self) -> String {
        address::shown(&self.url)
    }

    /// Sets [`username`](Self::username).
    #[must_use]
    pub fn username(mut self, name: impl Into<String>) -> Self {
        self.username = Some(name.into());
        self
    }

    /// Sets [`password`](Self::password).
    #[must_use]
    pub fn password(mut self, password: impl Into<SecretString>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Sets [`tls_mode`](Self::tls_mode).
    #[must_use]
    pub fn tls_mode(mut self, mode: TlsMode) -> Self {
        self.tls_mode = Some(mode);
        self
    }

    /// Sets [`tls_root_cert`](Self::tls_root_cert).
    #[must_use]
    pub fn tls_root_cert(mut self, file: impl Into<PathBuf>) -> Self {
        self.tls_root_cert = Some(file.into());
        self
    }

    /// Sets [`maximum_pool_size`](Self::maximum_pool_size).
    #[must_use]
    pub fn maximum_pool_size(mut self, connections: usize) -> Self {
        self.maximum_pool_size = connections;
        self
    }

    /// Sets [`minimum_idle`](Self::minimum_idle).
    #[must_use]
    pub fn minimum_idle(mut self, connections: usize) -> Self {
        self.minimum_idle = connections;
        self
    }

    /// Sets [`idle_timeout`](Self::idle_timeout).
    #[must_use]
    pub fn idle_timeout(mut self, timeout: Duration) -> Self {
        self.idle_timeout = timeout;
        self
    }

    /// Sets [`max_lifetime`](Self::max_lifetime).
    #[must_use]
    pub fn max_lifetime(mut self, lifetime: Duration) -> Self {
        self.max_lifetime = lifetime;
        self
    }

    /// Sets [`leak_detection_threshold`](Self::leak_detection_threshold).
    #[must_use]
    pub fn leak_detection_threshold(mut self, threshold: Duration) -> Self {
        self.leak_detection_threshold = threshold;
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

    /// Sets [`locks`](Self::locks).
    #[must_use]
    pub fn locks(mut self, locks: LockConfig) -> Self {
        self.locks = locks;
        self
    }
}

/// With `***` for the password, and for that of the url.
impl fmt::Debug for DataSourceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataSourceConfig")
            .field("url", &self.shown_url())
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "***"))
            .field("tls_mode", &self.tls_mode)
            .field("tls_root_cert", &self.tls_root_cert)
            .field("maximum_pool_size", &self.maximum_pool_size)
            .field("minimum_idle", &self.minimum_idle)
            .field("idle_timeout", &self.idle_timeout)
            .field("max_lifetime", &self.max_lifetime)
            .field("leak_detection_threshold", &self.leak_detection_threshold)
            .field("lanes", &self.lanes)
            .field("fold_limit", &self.fold_limit)
            .field("connection_timeout", &self.connection_timeout)
            .field("commit_timeout", &self.commit_timeout)
            .field("settle_timeout", &self.settle_timeout)
            .field("statement_timeout", &self.statement_timeout)
            .field("application_name", &self.application_name)
            .field("durability", &self.durability)
            .field("eventlog", &self.eventlog)
            .field("locks", &self.locks)
            .finish()
    }
}
