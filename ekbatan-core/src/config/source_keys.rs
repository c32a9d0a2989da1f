//! The keys of a database and of keyed locks.

use super::key::{ANY, BYTES, Key, Kind, MILLISECONDS, SOME, TIME};
use super::lock_config::LockProviderKind;

/// The keys of every slot.
pub(super) const DATA_SOURCE: &[Key] = &[
    Key::new(
        "url",
        Kind::Address,
        "The address: sqlite:FILE, postgres://HOST:PORT/DATABASE, mysql://.. or mariadb://..",
    ),
    Key::new("jdbc-url", Kind::Address, "The address in the form of JDBC, instead of `url`."),
    Key::new("username", Kind::Text, "The user, if the address contains none.").or("the address's"),
    Key::new("password", Kind::Secret, "The password, if the address contains none; may be empty.")
        .or("the address's"),
    Key::refused("driver-class-name", "the scheme of the address selects the driver; remove the key"),
    Key::new("maximum-pool-size", SOME, "The maximum number of connections for reads and transactions.")
        .or("10"),
    Key::new("minimum-idle", ANY, "The number of idle connections that the pool keeps open.")
        .or("0"),
    Key::new(
        "idle-timeout",
        MILLISECONDS,
        "The pool closes a connection that is unused for this long; 0 for never. A bare number means milliseconds.",
    )
    .or("10m"),
    Key::new(
        "leak-detection-threshold",
        MILLISECONDS,
        "The pool reports a connection that is checked out for this long, at least 2s; 0 for never. A bare number means milliseconds.",
    )
    .or("0"),
    Key::new(
        "connection-timeout",
        TIME,
        "The timeout of connecting to the server, and of waiting for a pooled connection.",
    )
    .or("10s"),
    Key::new("max-lifetime", TIME, "The pool replaces a connection of this age, at least 30s; 0s for never.")
        .or("30m"),
    Key::new("statement-timeout", TIME, "The server cancels a statement after this time.")
        .or("the server's"),
    Key::new(
        "tls-mode",
        Kind::Word(&["disable", "prefer", "require", "verify-ca", "verify-full"]),
        "Whether connections are encrypted, and how the server's certificate is verified.",
    )
    .or("the address's, or `prefer`"),
    Key::new(
        "tls-root-cert",
        Kind::Text,
        "A file of root certificates that may sign the server's certificate, with `verify-ca` or `verify-full`. Connections of data trust the public authorities, too.",
    ),
    Key::new("application-name", Kind::Text, "The name of the sessions in the server's own list.")
        .or("the address's, or `ekbatan`"),
    Key::new("lanes", SOME, "The number of connections that commit. SQLite has one writer and thus one lane.").or("2, and up to 8 if the server is far"),
    Key::new("fold-limit", SOME, "The maximum number of waiting actions that a lane commits together.").or("64"),
    Key::new(
        "max-row-bytes",
        BYTES,
        "The maximum size of a row; parameters and payloads of events are columns of rows, too.",
    )
    .or("16777216"),
    Key::new(
        "max-commit-bytes",
        BYTES,
        "The maximum size of all rows of a commit, and of the parameters of a query.",
    )
    .or("67108864"),
    Key::new(
        "read-timeout",
        TIME,
        "The timeout of a read, and of each statement of a transaction. After it the connection is closed. 0s for none; SQLite needs none.",
    )
    .or("60s"),
    Key::new(
        "queue-limit",
        SOME,
        "The maximum number of actions that wait for a lane. Further ones are refused at once, as overloaded.",
    )
    .or("10000"),
    Key::new(
        "commit-timeout",
        TIME,
        "The timeout of a commit. After it the connection counts as lost.",
    )
    .or("60s"),
    Key::new(
        "settle-timeout",
        TIME,
        "After a connection is lost during a commit, the lane looks up the outcome for this long.",
    )
    .or("30s"),
    Key::new(
        "eventlog",
        Kind::Text,
        "MySQL and MariaDB: the database of the framework's tables. Shards on one server need one each.",
    )
    .or("eventlog"),
    Key::new(
        "durability",
        Kind::Word(&["full", "wal"]),
        "SQLite: whether a commit survives a power loss (`full`) or only a crash of the process (`wal`).",
    )
    .or("full"),
];

/// The keys of the slot `lock-config`.
pub(super) const LOCK_SOURCE: &[Key] =
    &joined::<{ DATA_SOURCE.len() + LOCK.len() }>(DATA_SOURCE, LOCK);

const LOCK: &[Key] = &[
    Key::new(
        "provider",
        Kind::Word(&LockProviderKind::NAMES),
        "Where the locks are stored. `in-process` needs no server; other processes do not see these locks.",
    )
    .or("by the address"),
    Key::new(
        "strategy",
        Kind::Word(&["lease", "session"]),
        "`lease`: a row per key with an expiry time. `session`: the server's own session locks, freed as soon as the process dies. All users of a key need the same strategy.",
    )
    .or("lease"),
    Key::new("namespace", Kind::Text, "Redis, etcd and HBase: the prefix of key names. MongoDB: the collection. Aerospike: the set.")
        .or("ekbatan-lock"),
    Key::new("zone", Kind::Text, "The zone of this process. A key of the level `Zone` excludes only holders in the same zone.")
        .or("default"),
    Key::new(
        "term",
        TIME,
        "The term of a lease at the server, at least 1s. The client renews it while the holder lives, so a crash frees the key after at most one term.",
    )
    .or("the maximum hold time of each lease, not renewed"),
    Key::new(
        "grants",
        Kind::Word(&["durable", "asynchronous"]),
        "PostgreSQL leases: whether a grant waits until it is on disk. If not, a crash of the server may forget the last grants, and a key may then have two holders.",
    )
    .or("durable"),
    Key::new(
        "retry-sleep",
        TIME,
        "The pause before a request that the lock server did not answer is repeated. Each following pause is twice as long.",
    )
    .or("50ms"),
    Key::new("max-retry-sleep", TIME, "The longest pause before a request is repeated, at least `retry-sleep`.").or("2s"),
];

const fn joined<const N: usize>(first: &[Key], second: &[Key]) -> [Key; N] {
    let mut all = [first[0]; N];
    let mut at = 1;
    while at < N {
        all[at] = if at < first.len() { first[at] } else { second[at - first.len()] };
        at += 1;
    }
    all
}
