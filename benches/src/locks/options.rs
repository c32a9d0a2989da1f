//! The options of the measurement of locks.

use std::time::Duration;

use clap::ValueEnum;

/// The options of `ekbatan-bench locks`.
#[derive(clap::Args)]
pub struct LocksOptions {
    /// Locks to measure; several, separated by commas. Default: all of them.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub provider: Vec<Provider>,

    /// Measures to take; several, separated by commas. Default: all of them.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub measure: Vec<Measure>,

    /// Duration of each measurement, after a short warm-up.
    #[arg(long, default_value_t = 3.0, value_parser = crate::seconds::parse)]
    pub seconds: f64,

    /// Number of rounds; medians are reported.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub repeats: u32,
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measure {
    /// One client acquires and releases a free key.
    Free,
    /// Two processes pass the key back and forth.
    Handoff,
    /// Eight clients compete in one process.
    Local,
    /// Eight clients compete in four processes.
    Processes,
}

impl Measure {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Handoff => "handoff",
            Self::Local => "local",
            Self::Processes => "processes",
        }
    }

    pub const fn processes(self) -> usize {
        match self {
            Self::Free | Self::Local => 1,
            Self::Handoff => 2,
            Self::Processes => 4,
        }
    }

    /// The number of clients in each process.
    pub const fn clients(self) -> usize {
        match self {
            Self::Free | Self::Handoff => 1,
            Self::Local => 8,
            Self::Processes => 2,
        }
    }

    /// How long a client holds the key. In `handoff` this is long enough for the other
    /// process to wait by then.
    pub const fn hold(self) -> Duration {
        match self {
            Self::Handoff => Duration::from_millis(2),
            _ => Duration::ZERO,
        }
    }
}

/// How the lock is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LockMode {
    /// By hand, in the usual way for the provider.
    Raw,
    /// By the server's own blocking lock, where that differs from `raw`.
    Blocking,
    /// By LockProvider.
    Ekbatan,
}

impl LockMode {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Blocking => "blocking",
            Self::Ekbatan => "ekbatan",
        }
    }
}

/// What stores the locks. To add a provider, add a variant and extend each `match` on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Provider {
    /// In the memory of one process.
    Process,
    /// Advisory locks of one session.
    PostgresSession,
    /// Rows of a table.
    PostgresLease,
    /// Keys in one Redis master.
    Redis,
    /// Named locks of one session of MySQL.
    MysqlSession,
    /// Rows of a table in MySQL.
    MysqlLease,
    /// Named locks of one session of MariaDB.
    MariadbSession,
    /// Rows of a table in MariaDB.
    MariadbLease,
    /// Rows of a table in a file.
    Sqlite,
    /// Places in the queue of a key in etcd.
    Etcd,
    /// Rows of a table in HBase.
    #[cfg(feature = "hbase")]
    #[value(name = "hbase")]
    HBase,
    /// Documents in FerretDB, which speaks the protocol of MongoDB.
    #[cfg(feature = "mongodb")]
    Mongodb,
    /// Records in Aerospike.
    #[cfg(feature = "aerospike")]
    Aerospike,
}

impl Provider {
    /// The name on the command line and in the results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::PostgresSession => "postgres-session",
            Self::PostgresLease => "postgres-lease",
            Self::Redis => "redis",
            Self::MysqlSession => "mysql-session",
            Self::MysqlLease => "mysql-lease",
            Self::MariadbSession => "mariadb-session",
            Self::MariadbLease => "mariadb-lease",
            Self::Sqlite => "sqlite",
            Self::Etcd => "etcd",
            #[cfg(feature = "hbase")]
            Self::HBase => "hbase",
            #[cfg(feature = "mongodb")]
            Self::Mongodb => "mongodb",
            #[cfg(feature = "aerospike")]
            Self::Aerospike => "aerospike",
        }
    }

    pub const fn reaches_other_processes(self) -> bool {
        !matches!(self, Self::Process)
    }

    /// The modes that this provider supports.
    pub const fn modes(self) -> &'static [LockMode] {
        match self {
            Self::Process
            | Self::PostgresSession
            | Self::Redis
            | Self::MysqlSession
            | Self::MariadbSession
            | Self::Sqlite
            | Self::Etcd => &[LockMode::Raw, LockMode::Ekbatan],
            #[cfg(feature = "hbase")]
            Self::HBase => &[LockMode::Raw, LockMode::Ekbatan],
            #[cfg(feature = "mongodb")]
            Self::Mongodb => &[LockMode::Raw, LockMode::Ekbatan],
            #[cfg(feature = "aerospike")]
            Self::Aerospike => &[LockMode::Raw, LockMode::Ekbatan],
            Self::PostgresLease | Self::MysqlLease | Self::MariadbLease => {
                &[LockMode::Raw, LockMode::Blocking, LockMode::Ekbatan]
            }
        }
    }
}
