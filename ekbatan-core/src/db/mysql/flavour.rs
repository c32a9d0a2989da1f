//! MySQL or MariaDB: what differs between the two besides types.

/// The server's product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavour {
    MySql,
    MariaDb,
}

impl Flavour {
    /// The statement that returns the log position of a primary.
    pub(super) fn position(self) -> &'static str {
        match self {
            Flavour::MySql => "SELECT @@GLOBAL.gtid_executed",
            Flavour::MariaDb => "SELECT @@GLOBAL.gtid_binlog_pos",
        }
    }

    /// The statement that waits until a replica reaches a log position.
    pub(super) fn has_reached(self) -> &'static str {
        match self {
            Flavour::MySql => {
                "SELECT IF(GTID_SUBSET(?, @@GLOBAL.gtid_executed), 1, WAIT_FOR_EXECUTED_GTID_SET(?, ?) = 0)"
            }
            Flavour::MariaDb => {
                "SELECT IF(MASTER_GTID_WAIT(?, 0) = 0, 1, MASTER_GTID_WAIT(?, ?) = 0)"
            }
        }
    }

    /// The scheme of a url that names this server.
    pub(super) fn scheme(self) -> &'static str {
        match self {
            Flavour::MySql => "mysql",
            Flavour::MariaDb => "mariadb",
        }
    }
}
