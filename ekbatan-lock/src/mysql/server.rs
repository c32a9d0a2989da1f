//! Which server it is, and whether locks can be kept there.
//!
//! What always holds: it is asked on every connection that is opened, because an address may
//! lead elsewhere after a fail-over.

use super::error::MySqlLocksError;

/// Asks for all that [`Server`] has to know. What a server does not have, it leaves out.
pub(super) const LOOK: &str = "SHOW GLOBAL VARIABLES WHERE Variable_name IN \
    ('version', 'read_only', 'super_read_only', 'innodb_read_only', 'wsrep_on')";

/// Which of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavour {
    MySql,
    MariaDb,
}

impl Flavour {
    /// Compares byte by byte and pads nothing: two keys are one if they are written alike.
    pub(super) fn collation(self) -> &'static str {
        match self {
            Flavour::MySql => "utf8mb4_0900_bin",
            Flavour::MariaDb => "utf8mb4_nopad_bin",
        }
    }

    /// No statement has less time than the protocol of locks gives it.
    pub(super) fn unlimited(self) -> &'static str {
        match self {
            Flavour::MySql => "max_execution_time = 0",
            Flavour::MariaDb => "max_statement_time = 0",
        }
    }
}

/// A server as it described itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub(super) flavour: Flavour,
    /// Whether it is a node of a Galera cluster.
    cluster: bool,
}

impl Server {
    /// Reads names and values of variables; refuses a server on which no lock is safe.
    pub(super) fn read(variables: &[(String, String)]) -> Result<Self, MySqlLocksError> {
        let value = |name: &str| {
            let found = variables.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
            found.map_or("", |(_, value)| value)
        };
        let is_on = |name| !matches!(value(name), "" | "0" | "OFF");
        let version = value("version");
        let flavour = if version.contains("MariaDB") { Flavour::MariaDb } else { Flavour::MySql };
        refuse_an_old_one(version, flavour)?;
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
        Ok(Self { flavour, cluster: is_on("wsrep_on") })
    }

    /// Named locks are granted by each node of a cluster for itself.
    pub(super) fn refuse_a_cluster(&self) -> Result<(), MySqlLocksError> {
        match self.cluster {
            false => Ok(()),
            true => Err(MySqlLocksError::Unsafe {
                reason: "the server is a node of a Galera cluster (wsrep_on is ON), of which each \
                         node grants GET_LOCK for itself or not at all; use leases \
                         (`MySqlLocks::leases`)"
                    .to_owned(),
            }),
        }
    }
}

fn refuse_an_old_one(version: &str, flavour: Flavour) -> Result<(), MySqlLocksError> {
    let mut numbers =
        version.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse::<u32>().unwrap_or_default());
    let mut next = || numbers.next().unwrap_or_default();
    let found = (next(), next(), next());
    let why = match flavour {
        Flavour::MySql if found < (5, 7, 5) => {
            "with each GET_LOCK it gives back the lock that the session had; MySQL 8.0 is the \
             oldest that will do"
        }
        // The framework's own limits, and those of the collations in use.
        Flavour::MySql if found < (8, 0, 17) => "MySQL 8.0.17 is the oldest that will do",
        Flavour::MariaDb if found < (10, 7, 0) => "MariaDB 10.7 is the oldest that will do",
        _ => return Ok(()),
    };
    Err(MySqlLocksError::Unsafe {
        reason: format!("the server is too old, of version `{version}`: {why}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Server, String> {
        let owned: Vec<_> =
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Server::read(&owned).map_err(|error| error.to_string())
    }

    #[test]
    fn a_server_says_which_it_is() {
        let mysql = read(&[("version", "9.7.4-2"), ("read_only", "OFF")]).unwrap();
        assert_eq!(mysql.flavour, Flavour::MySql);
        let mariadb = read(&[("version", "10.11.18-MariaDB-0+deb12u1"), ("wsrep_on", "OFF")]);
        assert_eq!(mariadb.as_ref().unwrap().flavour, Flavour::MariaDb);
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
    fn a_node_of_a_cluster_has_rows_but_no_named_locks() {
        let node = read(&[("version", "10.11.6-MariaDB"), ("wsrep_on", "ON")]).unwrap();
        let refused = node.refuse_a_cluster().unwrap_err().to_string();
        assert!(refused.contains("MySqlLocks::leases"), "{refused}");
    }
}
