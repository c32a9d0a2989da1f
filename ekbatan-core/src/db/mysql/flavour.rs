//! MySQL or MariaDB: what differs between the two besides types.

/// Which of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavour {
    MySql,
    MariaDb,
}

impl Flavour {
    /// Asks how far a primary has come.
    pub(super) fn position(self) -> &'static str {
        match self {
            Flavour::MySql => "SELECT @@GLOBAL.gtid_executed",
            Flavour::MariaDb => "SELECT @@GLOBAL.gtid_binlog_pos",
        }
    }

    /// Asks whether a replica has come so far, if need be after waiting for it.
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
