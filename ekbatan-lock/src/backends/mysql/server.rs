//! The variant of a server, and the check that locks on it are safe.
//!
//! Invariant: every new connection is checked, because an address can lead to another server
//! after a fail-over.

use super::error::MySqlLocksError;

/// Selects what [`ServerInfo`] needs. A server omits variables that it does not have. First sets
/// the variables that could cut the answer short, or leave it in a transaction.
pub(super) const VARIABLES: &str = "\
    SET autocommit = 1, sql_big_selects = 1, sql_select_limit = 18446744073709551615; \
    SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'read_only', 'super_read_only', \
    'innodb_read_only', 'wsrep_on', 'log_bin', 'binlog_format')";

/// MySQL or MariaDB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MySqlVariant {
    MySql,
    MariaDb,
}

impl MySqlVariant {
    /// A collation that compares byte by byte without padding, so that keys are equal only if
    /// their bytes are.
    pub(super) fn collation(self) -> &'static str {
        match self {
            MySqlVariant::MySql => "utf8mb4_0900_bin",
            MySqlVariant::MariaDb => "utf8mb4_nopad_bin",
        }
    }

    /// The setting that removes the server's time limit of statements.
    pub(super) fn unlimited(self) -> &'static str {
        match self {
            MySqlVariant::MySql => "max_execution_time = 0",
            MySqlVariant::MariaDb => "max_statement_time = 0",
        }
    }
}

/// What a server says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ServerInfo {
    pub(super) variant: MySqlVariant,
    /// Whether it is a node of a Galera cluster.
    cluster: bool,
}

impl ServerInfo {
    /// Reads names and values of variables. Rejects a server on which no lock is safe.
    pub(super) fn read(variables: &[(String, String)]) -> Result<Self, MySqlLocksError> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map_or("", |(_, value)| value)
        };
        let is_on = |name| !matches!(value(name), "" | "0" | "OFF");
        let version = value("version");
        let variant =
            if version.contains("MariaDB") { MySqlVariant::MariaDb } else { MySqlVariant::MySql };
        refuse_an_old_one(version, variant)?;
        for name in ["read_only", "super_read_only", "innodb_read_only"] {
            if is_on(name) {
                return Err(MySqlLocksError::Unsafe {
                    reason: format!(
                        "the server cannot be written to ({name} is {}), as a replica cannot, \
                         whose locks exclude nobody on the primary; give the address of the \
                         primary",
                        value(name)
                    ),
                });
            }
        }
        if is_on("log_bin") && value("binlog_format").eq_ignore_ascii_case("STATEMENT") {
            return Err(MySqlLocksError::Unsafe {
                reason: "binlog_format is STATEMENT, with which the server refuses to write rows \
                         in READ COMMITTED; set it to ROW or MIXED"
                    .to_owned(),
            });
        }
        Ok(Self { variant, cluster: is_on("wsrep_on") })
    }

    /// Each node of a cluster grants named locks on its own.
    pub(super) fn refuse_a_cluster(&self) -> Result<(), MySqlLocksError> {
        if !self.cluster {
            return Ok(());
        }
        Err(MySqlLocksError::Unsafe {
            reason: "the server is a node of a Galera cluster (wsrep_on is ON), of which each \
                     node grants GET_LOCK for itself or not at all; use leases \
                     (`MySqlLocks::leases`)"
                .to_owned(),
        })
    }
}

fn refuse_an_old_one(version: &str, variant: MySqlVariant) -> Result<(), MySqlLocksError> {
    let mut numbers =
        version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    let found = (next(), next(), next());
    let why = match variant {
        MySqlVariant::MySql if found < (5, 7, 5) => {
            "with each GET_LOCK it gives back the lock that the session had; MySQL 8.0 is the \
             oldest that will do"
        }
        // Required by the framework's data tables, and by the collations in use.
        MySqlVariant::MySql if found < (8, 0, 17) => "MySQL 8.0.17 is the oldest that will do",
        MySqlVariant::MariaDb if found < (10, 7, 0) => "MariaDB 10.7 is the oldest that will do",
        _ => return Ok(()),
    };
    Err(MySqlLocksError::Unsafe {
        reason: format!("the server is too old, of version `{version}`: {why}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<ServerInfo, String> {
        let owned: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        ServerInfo::read(&owned).map_err(|error| error.to_string())
    }

    #[test]
    fn the_variant_is_read_from_the_version() {
        let mysql = read(&[("version", "9.7.4-2"), ("read_only", "OFF")]).unwrap();
        assert_eq!(mysql.variant, MySqlVariant::MySql);
        let mariadb = read(&[("version", "10.11.18-MariaDB-0+deb12u1"), ("wsrep_on", "OFF")]);
        assert_eq!(mariadb.as_ref().unwrap().variant, MySqlVariant::MariaDb);
        assert!(mariadb.unwrap().refuse_a_cluster().is_ok());
    }

    #[test]
    fn old_servers_are_refused_with_the_reason() {
        let refused = read(&[("version", "5.7.4-log")]).unwrap_err();
        assert!(refused.contains("GET_LOCK") && refused.contains("5.7.4"), "{refused}");
        let refused = read(&[("version", "5.7.44")]).unwrap_err();
        assert!(refused.contains("MySQL 8.0.17"), "{refused}");
        let refused = read(&[("version", "10.6.20-MariaDB")]).unwrap_err();
        assert!(refused.contains("MariaDB 10.7"), "{refused}");
    }

    #[test]
    fn a_server_that_cannot_be_written_to_is_refused() {
        for (name, value) in
            [("read_only", "ON"), ("super_read_only", "1"), ("read_only", "NO_LOCK_NO_ADMIN")]
        {
            let refused = read(&[("version", "9.1.0"), (name, value)]).unwrap_err();
            assert!(refused.contains(name) && refused.contains("primary"), "{refused}");
        }
    }

    #[test]
    fn a_binary_log_of_statements_is_refused() {
        let with = |log_bin, format| {
            read(&[("version", "9.1.0"), ("log_bin", log_bin), ("binlog_format", format)])
        };
        assert!(with("ON", "ROW").is_ok() && with("OFF", "STATEMENT").is_ok());
        let refused = with("ON", "STATEMENT").unwrap_err();
        assert!(refused.contains("set it to ROW or MIXED"), "{refused}");
    }

    #[test]
    fn a_node_of_a_cluster_has_rows_but_no_named_locks() {
        let node = read(&[("version", "10.11.6-MariaDB"), ("wsrep_on", "ON")]).unwrap();
        let refused = node.refuse_a_cluster().unwrap_err().to_string();
        assert!(refused.contains("MySqlLocks::leases"), "{refused}");
    }
}
