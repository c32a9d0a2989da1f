//! What locks rely on: the version and the identity of the cluster, and the attributes of the
//! table.

use ekbatan_lock::LockError;

use crate::address::refused;
use crate::client::FAMILY;
use crate::messages::admin::{BytesBytesPair, TableSchema};

/// The version since which a request with conditions for several rows is understood.
const OLDEST: (u64, u64) = (2, 4);

/// The attributes with which the table is made.
pub(crate) const FAMILY_ATTRIBUTES: [(&str, &str); 5] = [
    ("VERSIONS", "1"),
    ("MIN_VERSIONS", "0"),
    ("TTL", "2147483647"),
    ("KEEP_DELETED_CELLS", "FALSE"),
    ("REPLICATION_SCOPE", "0"),
];

pub(crate) fn check_version(version: &str) -> Result<(), LockError> {
    let mut numbers = version.split(['.', '-']).map(|part| part.parse::<u64>().ok());
    let known = (numbers.next().flatten(), numbers.next().flatten());
    match known {
        (Some(major), Some(minor)) if (major, minor) < OLDEST => Err(refused(&format!(
            "the cluster is version {version}; locks need {}.{} or newer",
            OLDEST.0, OLDEST.1
        ))),
        _ => Ok(()),
    }
}

/// Checks that the cluster is the one that all zones share, if the configuration names it.
pub(crate) fn check_identity(expected: Option<&str>, actual: &str) -> Result<(), LockError> {
    match expected {
        Some(expected) if expected != actual => Err(refused(&format!(
            "this cluster is `{actual}`, and the parameter `cluster` of the address names another \
             one: processes of different zones would hold a key of all zones at the same time; \
             name the servers and the id of the one cluster that all zones share"
        ))),
        _ => Ok(()),
    }
}

pub(crate) fn check_table(name: &str, schema: &TableSchema) -> Result<(), LockError> {
    let of_table = Attributes(&schema.attributes);
    let wrong =
        |what: &str, advice: &str| Err(refused(&format!("the table `{name}` {what}; {advice}")));
    if of_table.is("READONLY", "true") {
        return wrong("is read-only", "set READONLY => 'false', or name another table");
    }
    if let Some(durability @ ("SKIP_WAL" | "ASYNC_WAL")) = of_table.get("DURABILITY").as_deref() {
        return wrong(
            &format!("has DURABILITY {durability}, so that a crash would forget who holds a key"),
            "set DURABILITY => 'SYNC_WAL'",
        );
    }
    let Some(family) = schema.column_families.iter().find(|family| family.name == FAMILY) else {
        return wrong(
            "has no column family `l`, so it is no table of locks",
            "name another table, which is then made",
        );
    };
    let family = Attributes(&family.attributes);
    if family.get("REPLICATION_SCOPE").is_some_and(|scope| scope != "0") {
        return wrong(
            "is replicated, and a copy of a lock that comes later in another cluster excludes \
             nobody there",
            "set REPLICATION_SCOPE => 0, and have all zones use one cluster",
        );
    }
    let is_for_ever = |ttl: &String| ttl == "2147483647" || ttl.eq_ignore_ascii_case("FOREVER");
    if let Some(ttl) = family.get("TTL").filter(|ttl| !is_for_ever(ttl)) {
        return wrong(
            &format!("forgets its cells after {ttl} s, and with them the tokens of keys"),
            "set TTL => 'FOREVER' for the family `l`; unused rows are deleted anyway",
        );
    }
    if let Some(versions) = family.get("VERSIONS").filter(|versions| versions != "1") {
        return wrong(
            &format!("keeps {versions} versions of each cell, which are never read"),
            "set VERSIONS => 1 for the family `l`",
        );
    }
    Ok(())
}

/// Attributes as the cluster stores them.
struct Attributes<'a>(&'a [BytesBytesPair]);

impl Attributes<'_> {
    fn get(&self, name: &str) -> Option<String> {
        let found = self.0.iter().find(|pair| pair.first.eq_ignore_ascii_case(name.as_bytes()))?;
        Some(String::from_utf8_lossy(&found.second).into_owned())
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.get(name).is_some_and(|found| found.eq_ignore_ascii_case(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::admin::ColumnFamilySchema;

    fn pairs(attributes: &[(&str, &str)]) -> Vec<BytesBytesPair> {
        let pair = |(first, second): &(&str, &str)| BytesBytesPair {
            first: first.as_bytes().to_vec(),
            second: second.as_bytes().to_vec(),
        };
        attributes.iter().map(pair).collect()
    }

    fn checked(of_table: &[(&str, &str)], family: &str, of_family: &[(&str, &str)]) -> String {
        let family =
            ColumnFamilySchema { name: family.as_bytes().to_vec(), attributes: pairs(of_family) };
        let schema = TableSchema {
            table_name: None,
            attributes: pairs(of_table),
            column_families: vec![family],
        };
        check_table("t", &schema).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn the_table_that_is_made_is_right() {
        assert_eq!(checked(&[], "l", &FAMILY_ATTRIBUTES), "");
        let usual = [("DURABILITY", "USE_DEFAULT"), ("READONLY", "false"), ("OWNER", "x")];
        assert_eq!(checked(&usual, "l", &[("TTL", "FOREVER"), ("BLOOMFILTER", "ROW")]), "");
    }

    #[test]
    fn a_table_that_breaks_a_promise_is_refused_by_name() {
        for (of_table, family, of_family, reason) in [
            (&[("READONLY", "true")][..], "l", &[][..], "is read-only"),
            (&[("DURABILITY", "SKIP_WAL")], "l", &[], "has DURABILITY SKIP_WAL"),
            (&[("DURABILITY", "ASYNC_WAL")], "l", &[], "has DURABILITY ASYNC_WAL"),
            (&[], "m", &[], "no column family `l`"),
            (&[], "l", &[("REPLICATION_SCOPE", "1")], "is replicated"),
            (&[], "l", &[("TTL", "86400")], "forgets its cells after 86400 s"),
            (&[], "l", &[("VERSIONS", "3")], "keeps 3 versions"),
        ] {
            let error = checked(of_table, family, of_family);
            assert!(error.contains(reason) && error.contains("`t`"), "{error}");
        }
    }

    #[test]
    fn versions_are_compared_by_number() {
        for version in ["2.4.0", "2.6.4-hadoop3", "2.10.0", "3.0.0-beta-1", "unknown"] {
            assert!(check_version(version).is_ok(), "{version}");
        }
        for version in ["2.3.7", "1.7.2", "0.98.24"] {
            let error = check_version(version).unwrap_err().to_string();
            assert!(error.contains(version) && error.contains("2.4 or newer"), "{error}");
        }
    }

    #[test]
    fn another_cluster_than_the_one_that_all_zones_share_is_refused() {
        assert!(check_identity(None, "a").is_ok());
        assert!(check_identity(Some("a"), "a").is_ok());
        let error = check_identity(Some("hidden"), "b").unwrap_err().to_string();
        assert!(error.contains("`b`") && error.contains("the parameter `cluster`"), "{error}");
        assert!(!error.contains("hidden"), "no value of a parameter is shown: {error}");
    }
}
