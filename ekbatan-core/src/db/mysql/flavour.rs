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

    /// Half of the session's statement timeout in whole seconds, or a very long time if it has
    /// none.
    pub(super) fn half_statement_timeout(self) -> &'static str {
        match self {
            Flavour::MySql => {
                "IF(@@max_execution_time > 0, @@max_execution_time DIV 2000, 1000000)"
            }
            Flavour::MariaDb => "IF(@@max_statement_time > 0, @@max_statement_time DIV 2, 1000000)",
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
