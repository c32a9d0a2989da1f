//! The settings of one database: its address, its pool, its lanes.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;

use super::address::{self, Parts, decoded, parameters};
use super::dialect::Dialect;
use super::lock_config::LockConfig;
use super::shown_address::shown;

/// The longest time that a setting may have: databases count milliseconds in 31 bits.
pub(crate) const LONGEST_TIMEOUT: Duration = Duration::from_secs(24 * 24 * 3_600);

/// How much of a commit is on the disk when the call returns. SQLite only: a server has its own
/// setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Durability {
    /// A commit survives a power loss.
    #[default]
    Full,
    /// A commit survives a crash of the process. A power loss may undo the last commits.
    Wal,
}

/// Whether a connection is encrypted, and how the client verifies the server's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TlsMode {
    /// Never encrypted.
    Disable,
    /// Encrypted if the server supports it.
    Prefer,
    /// Encrypted; the certificate is not verified.
    Require,
    /// Encrypted; the certificate must be signed by a trusted authority. The name of the host is not
    /// checked, so a certificate for another host passes.
    VerifyCa,
    /// Encrypted; the certificate must also name the host.
    VerifyFull,
}

/// One database and how much of it is used.
///
/// ```
/// use ekbatan_core::config::DataSourceConfig;
///
/// let config = DataSourceConfig::new("sqlite:wallet.db").maximum_pool_size(4);
/// assert_eq!(config.lanes, None);
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct DataSourceConfig {
    /// `sqlite:FILE`, `postgres://HOST:PORT/DATABASE`, `mysql://..` or `mariadb://..`. A
    /// user and a password may precede the host.
    pub url: String,
    /// The user, if the url contains none.
    pub username: Option<String>,
    /// The password, if the url contains none. May be empty.
    pub password: Option<SecretString>,
    /// Whether connections are encrypted. Default: the mode in the url, or [`TlsMode::Prefer`].
    pub tls_mode: Option<TlsMode>,
    /// A file of root certificates that may sign the server's certificate. Only the modes
    /// [`VerifyCa`](TlsMode::VerifyCa) and [`VerifyFull`](TlsMode::VerifyFull) verify it. Connections
    /// of data, and all to MySQL and MariaDB, trust the public authorities beside those of the file;
    /// so use [`VerifyFull`](TlsMode::VerifyFull).
    pub tls_root_cert: Option<PathBuf>,
    /// The maximum number of connections for reads and transactions. Default 10.
    pub maximum_pool_size: usize,
    /// The number of idle connections that the pool keeps open. Default 0.
    pub minimum_idle: usize,
    /// The pool closes a connection that is unused for this long; zero for never. Default 10
    /// minutes.
    pub idle_timeout: Duration,
    /// The pool replaces a connection of this age; zero for never. Default 30 minutes.
    pub max_lifetime: Duration,
    /// The pool reports a connection that is checked out for this long; zero, the default, for
    /// never.
    pub leak_detection_threshold: Duration,
    /// The number of connections that commit. Default: 2, and up to 8 where a round trip to the server
    /// takes long. SQLite has one writer and thus one lane.
    pub lanes: Option<usize>,
    /// The maximum number of waiting actions that a lane commits together. Default 64.
    pub fold_limit: usize,
    /// The maximum number of actions that wait for a lane. Further ones are refused, and so are
    /// those beyond 256 MiB of waiting rows, or 4 times
    /// [`max_commit_bytes`](Self::max_commit_bytes) if that is larger. Default 10,000.
    pub queue_limit: usize,
    /// The timeout of connecting to the server, and of waiting for a pooled connection. Default
    /// 10 s. A commit waits as long for a row lock, but at most half of
    /// [`commit_timeout`](Self::commit_timeout) and of the session's statement timeout.
    pub connection_timeout: Duration,
    /// The timeout of every other use of a connection: a read, and each statement of a transaction.
    /// After it the connection is closed. Zero for none. Default 60 s. SQLite runs in this process
    /// and needs none.
    pub read_timeout: Duration,
    /// The timeout of a commit. After it the lane treats the connection as lost. Default 60 s.
    pub commit_timeout: Duration,
    /// After a connection is lost during a commit, the lane looks up the outcome for this long;
    /// then it reports "unknown". Default 30 s.
    pub settle_timeout: Duration,
    /// The maximum size of a row, in bytes of its texts, documents and byte strings. Parameters and
    /// payloads of events are columns of rows, too. Default 16 MiB.
    pub max_row_bytes: usize,
    /// The maximum size of all rows of one commit, and of the parameters of one query. Default
    /// 64 MiB.
    pub max_commit_bytes: usize,
    /// The server cancels a statement after this time. Default: the server's own timeout.
    pub statement_timeout: Option<Duration>,
    /// The name of the sessions in the server's own list. Default: the `application_name` in the url,
    /// or `ekbatan`.
    pub application_name: String,
    /// See [`Durability`].
    pub durability: Durability,
    /// The database that holds the framework's tables on MySQL and MariaDB. Default
    /// `eventlog`.
    pub eventlog: String,
    /// The settings of keyed locks. Only the slot `lock-config` may set them.
    pub locks: LockConfig,
}

impl DataSourceConfig {
    /// A database at this address, with all defaults.
    pub fn new(url: impl Into<String>) -> Self {
        let url = url.into();
        Self {
            application_name: application_name(&url),
            url,
            username: None,
            password: None,
            tls_mode: None,
            tls_root_cert: None,
            maximum_pool_size: 10,
            minimum_idle: 0,
            idle_timeout: Duration::from_secs(10 * 60),
            max_lifetime: Duration::from_secs(30 * 60),
            leak_detection_threshold: Duration::ZERO,
            lanes: None,
            fold_limit: 64,
            queue_limit: 10_000,
            connection_timeout: Duration::from_secs(10),
            read_timeout: Duration::from_secs(60),
            commit_timeout: Duration::from_secs(60),
            settle_timeout: Duration::from_secs(30),
            max_row_bytes: 16 << 20,
            max_commit_bytes: 64 << 20,
            statement_timeout: None,
            durability: Durability::Full,
            eventlog: "eventlog".to_owned(),
            locks: LockConfig::default(),
        }
    }

    /// The SQL dialect, by the scheme of the url; `None` for other addresses, such as Redis.
    pub fn dialect(&self) -> Option<Dialect> {
        address::dialect(&self.url)
    }

    /// The url with its password as `***`, for messages.
    pub fn shown_url(&self) -> String {
        shown(&self.url)
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
        self.lanes = Some(lanes);
        self
    }

    /// Sets [`fold_limit`](Self::fold_limit); 1 commits every action alone.
    #[must_use]
    pub fn fold_limit(mut self, batches: usize) -> Self {
        self.fold_limit = batches;
        self
    }

    /// Sets [`queue_limit`](Self::queue_limit).
    #[must_use]
    pub fn queue_limit(mut self, batches: usize) -> Self {
        self.queue_limit = batches;
        self
    }

    /// Sets [`connection_timeout`](Self::connection_timeout).
    #[must_use]
    pub fn connection_timeout(mut self, timeout: Duration) -> Self {
        self.connection_timeout = timeout;
        self
    }

    /// Sets [`read_timeout`](Self::read_timeout).
    #[must_use]
    pub fn read_timeout(mut self, timeout: Duration) -> Self {
        self.read_timeout = timeout;
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

    /// Sets [`max_row_bytes`](Self::max_row_bytes).
    #[must_use]
    pub fn max_row_bytes(mut self, bytes: usize) -> Self {
        self.max_row_bytes = bytes;
        self
    }

    /// Sets [`max_commit_bytes`](Self::max_commit_bytes).
    #[must_use]
    pub fn max_commit_bytes(mut self, bytes: usize) -> Self {
        self.max_commit_bytes = bytes;
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

    /// Sets [`eventlog`](Self::eventlog). Applications and shards that share a server
    /// need one each.
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

/// The name of the sessions if no key gives one.
pub(super) fn application_name(url: &str) -> String {
    let mut parameters = parameters(Parts::of(url).query);
    let inside = parameters
        .find(|(name, value)| *name == "application_name" && !decoded(value).trim().is_empty());
    inside.map_or_else(|| "ekbatan".to_owned(), |(_, name)| decoded(name))
}

/// Shows `***` instead of passwords, also inside the url.
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
            .field("queue_limit", &self.queue_limit)
            .field("connection_timeout", &self.connection_timeout)
            .field("read_timeout", &self.read_timeout)
            .field("commit_timeout", &self.commit_timeout)
            .field("settle_timeout", &self.settle_timeout)
            .field("max_row_bytes", &self.max_row_bytes)
            .field("max_commit_bytes", &self.max_commit_bytes)
            .field("statement_timeout", &self.statement_timeout)
            .field("application_name", &self.application_name)
            .field("durability", &self.durability)
            .field("eventlog", &self.eventlog)
            .field("locks", &self.locks)
            .finish()
    }
}
