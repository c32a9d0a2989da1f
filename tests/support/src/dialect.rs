//! The databases that the tests run on.

/// A database that the tests run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// A file, without a server.
    Sqlite,
    /// The shared PostgreSQL server.
    Postgres,
    /// The shared MySQL server.
    MySql,
    /// The shared MariaDB server.
    MariaDb,
}

impl Dialect {
    /// Every dialect.
    pub const ALL: [Dialect; 4] =
        [Dialect::Sqlite, Dialect::Postgres, Dialect::MySql, Dialect::MariaDb];

    /// The dialect that the scheme of a URL names.
    pub fn of_url(url: &str) -> Self {
        match url.split(':').next().unwrap() {
            "sqlite" => Dialect::Sqlite,
            "postgres" | "postgresql" => Dialect::Postgres,
            "mysql" => Dialect::MySql,
            "mariadb" => Dialect::MariaDb,
            scheme => panic!("no dialect has the scheme {scheme}: {url}"),
        }
    }

    /// Whether this is MySQL or MariaDB.
    pub fn is_mysql(self) -> bool {
        matches!(self, Dialect::MySql | Dialect::MariaDb)
    }
}
