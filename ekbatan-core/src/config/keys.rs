//! Every key that the configuration knows: its name, what its value may be, what it is for.
//!
//! This table is the only place where a key is declared. The reader takes the names and
//! shapes of keys from it, the environment's names are matched against it, and the schema
//! for editors is printed from it, so none of them can come to differ.

use super::spelling::same_key;

/// A key, in kebab-case.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) required: bool,
    /// What holds when the key is absent, as text for readers.
    pub(super) default: Option<&'static str>,
    pub(super) about: &'static str,
}

/// What the value of a key may be.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Any text that is not blank.
    Text,
    /// An address; what it shows of itself never holds a password.
    Address,
    /// A text that is never shown.
    Secret,
    /// A whole number.
    Count { least: u64, most: u64 },
    /// `true` or `false`.
    Flag,
    /// One of a few words.
    Word(&'static [&'static str]),
    /// A time span. In the reference's own keys a bare number means milliseconds.
    Time { bare_milliseconds: bool },
    /// A mapping with these keys.
    Section(&'static [Key]),
    /// A list of such mappings.
    List(&'static [Key]),
    /// A mapping whose keys name uses of a database, and whose values have the keys that
    /// [`of_slot`] tells.
    Slots,
}

/// The slots that have a meaning of their own; any other name may be used besides.
pub(super) const SLOTS: [(&str, &str); 4] = [
    ("primary-config", "The database that is written and, unless told otherwise, read."),
    ("secondary-config", "A replica of it, which reads take only by name."),
    (
        LOCKS,
        "Keyed locks: what they live in, by default the primary itself, and their connections.",
    ),
    ("jobs-config", "The connections of scheduled jobs."),
];

/// The slot of keyed locks, which has keys of its own.
pub(super) const LOCKS: &str = "lock-config";

/// What may stand below a slot.
pub(super) fn of_slot(slot: &str) -> &'static [Key] {
    if same_key(slot, LOCKS) { LOCK_SOURCE } else { DATA_SOURCE }
}

impl Key {
    const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, required: false, default: None, about }
    }

    const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }
}

/// The key of this name, whatever its spelling.
pub(super) fn find(keys: &'static [Key], name: &str) -> Option<&'static Key> {
    keys.iter().find(|key| same_key(key.name, name))
}

const TIME: Kind = Kind::Time { bare_milliseconds: false };
const MILLISECONDS: Kind = Kind::Time { bare_milliseconds: true };
const ANY: Kind = Kind::Count { least: 0, most: u32::MAX as u64 };
const SOME: Kind = Kind::Count { least: 1, most: u32::MAX as u64 };
const GROUP: Kind = Kind::Count { least: 0, most: 255 };
const MEMBER: Kind = Kind::Count { least: 0, most: 63 };

/// What stands below the root key `ekbatan`.
pub(super) static ROOT: &[Key] = &[
    Key::new("namespace", Kind::Text, "Whose actions these are: dot-separated words."),
    Key::new("sharding", Kind::Section(SHARDING), "The databases, when there are several."),
    Key::new("configs", Kind::Slots, "The database, when there is one; excludes `sharding`."),
    Key::new("jobs", Kind::Section(JOBS), "Scheduled jobs. Accepted and checked, not used yet."),
    Key::new(
        "local-event-handler",
        Kind::Section(LOCAL_EVENT_HANDLER),
        "Handlers of events. Accepted and checked, not used yet.",
    ),
    Key::new(
        "spring",
        Kind::Section(SPRING),
        "Accepted from files of the Java framework; not used.",
    ),
];

/// The sections whose values are checked and not used yet.
pub(super) const UNUSED: [&str; 3] = ["jobs", "local-event-handler", "spring"];

static SHARDING: &[Key] = &[
    Key::new(
        "default-shard",
        Kind::Section(DEFAULT_SHARD),
        "Where everything is that names no shard.",
    )
    .required(),
    Key::new(
        "unknown-shard",
        Kind::Word(&["error", "default-shard"]),
        "What becomes of an id that names a shard which is not here.",
    )
    .or("error"),
    Key::new("groups", Kind::List(GROUPS), "The shards, by group.").required(),
];

static DEFAULT_SHARD: &[Key] = &[
    Key::new("group", GROUP, "Its group, 0 to 255.").required(),
    Key::new("member", MEMBER, "Its member, 0 to 63.").required(),
];

static GROUPS: &[Key] = &[
    Key::new("group", GROUP, "The group's number, 0 to 255, as ids carry it.").required(),
    Key::new("name", Kind::Text, "The group's name, for people.").required(),
    Key::new("members", Kind::List(MEMBERS), "The databases of the group.").required(),
];

static MEMBERS: &[Key] = &[
    Key::new("member", MEMBER, "The member's number, 0 to 63, as ids carry it.").required(),
    Key::new("name", Kind::Text, "The member's name, for people."),
    Key::new("configs", Kind::Slots, "Its database, by use.").required(),
];

/// What stands below a slot.
const DATA_SOURCE: &[Key] = &[
    Key::new(
        "url",
        Kind::Address,
        "The address: sqlite:FILE, postgres://HOST:PORT/DATABASE, mysql://.. or mariadb://..",
    ),
    Key::new("jdbc-url", Kind::Address, "The address as JDBC writes it, instead of `url`."),
    Key::new("username", Kind::Text, "The user, if the address names none.").or("the address's"),
    Key::new("password", Kind::Secret, "The password, if the address holds none; may be empty.")
        .or("the address's"),
    Key::new("driver-class-name", Kind::Text, "Accepted from files of the Java framework; not used."),
    Key::new("maximum-pool-size", SOME, "How many connections read and run transactions at most.")
        .or("10"),
    Key::new("minimum-idle", ANY, "How many connections are kept open, even when nobody needs them.")
        .or("0"),
    Key::new(
        "idle-timeout",
        MILLISECONDS,
        "After how long an unused connection is closed; 0 for never. A bare number means milliseconds.",
    )
    .or("10m"),
    Key::new(
        "leak-detection-threshold",
        MILLISECONDS,
        "From when on a held connection is reported, at least 2s; 0 for never. A bare number means milliseconds.",
    )
    .or("0"),
    Key::new(
        "connection-timeout",
        TIME,
        "How long to wait for a connection: to the server, and from the pool.",
    )
    .or("10s"),
    Key::new("max-lifetime", TIME, "After how long a connection is replaced, at least 30s; 0s for never.")
        .or("30m"),
    Key::new("statement-timeout", TIME, "After how long the server gives up a statement.")
        .or("the server's"),
    Key::new(
        "tls-mode",
        Kind::Word(&["disable", "prefer", "require", "verify-ca", "verify-full"]),
        "Whether the connection is encrypted, and how the server's certificate is looked at.",
    )
    .or("the address's, or `prefer`"),
    Key::new("tls-root-cert", Kind::Text, "The file of certificates that the server's has to stem from."),
    Key::new("application-name", Kind::Text, "The name that the server's own listing of sessions shows.")
        .or("ekbatan"),
    Key::new("lanes", SOME, "How many connections commit. SQLite has one writer and so one lane.").or("2"),
    Key::new("fold-limit", SOME, "How many waiting actions one lane commits together at most.").or("64"),
    Key::new(
        "commit-timeout",
        TIME,
        "How long a server may take to answer a commit before its connection counts as lost.",
    )
    .or("60s"),
    Key::new(
        "settle-timeout",
        TIME,
        "How long a lane that lost its connection in a commit tries to learn what became of it.",
    )
    .or("30s"),
    Key::new(
        "eventlog",
        Kind::Text,
        "MySQL and MariaDB: the database that holds the framework's tables. Shards on one server need one each.",
    )
    .or("eventlog"),
    Key::new(
        "durability",
        Kind::Word(&["full", "wal"]),
        "SQLite: whether a commit survives the loss of power, or of the process alone.",
    )
    .or("full"),
];

/// What stands below the slot of keyed locks.
const LOCK_SOURCE: &[Key] = &joined::<{ DATA_SOURCE.len() + LOCK.len() }>(DATA_SOURCE, LOCK);

const LOCK: &[Key] = &[
    Key::new(
        "provider",
        Kind::Word(&["in-process", "postgres", "mysql", "mariadb", "sqlite", "redis"]),
        "What the locks live in. `in-process` needs no server, and reaches no other process.",
    )
    .or("by the address"),
    Key::new(
        "strategy",
        Kind::Word(&["lease", "session"]),
        "A row per key that its time ends, or the server's own locks of one session, free at once when the process dies. All who lock the same keys need the same.",
    )
    .or("lease"),
    Key::new("namespace", Kind::Text, "Redis: what the names of keys begin with there.")
        .or("ekbatan-lock"),
    Key::new("zone", Kind::Text, "The zone of this process; a key of the level `Dc` excludes only within it.")
        .or("default"),
    Key::new(
        "term",
        TIME,
        "Leases are held at the server by this term, at least 1s, and renewed while their holder lives: a crash frees a key after so long.",
    )
    .or("as long as each is held at most, not renewed"),
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

static JOBS: &[Key] = &[
    Key::new("polling-interval", TIME, "How often a due job is looked for.").or("PT10S"),
    Key::new("heartbeat-interval", TIME, "How often a running job gives a sign of life.")
        .or("PT10S"),
    Key::new("shutdown-max-wait", TIME, "How long a shutdown waits for running jobs.").or("PT30M"),
];

static LOCAL_EVENT_HANDLER: &[Key] = &[
    Key::new("fanout-poll-delay", TIME, "The pause of an idle fan-out.").or("PT1S"),
    Key::new("fanout-batch-size", SOME, "How many events a round fans out.").or("200"),
    Key::new("handling-poll-delay", TIME, "The pause of an idle handling.").or("PT1S"),
    Key::new("handling-batch-size", SOME, "How many notifications a round handles.").or("100"),
    Key::new("handling-max-backoff-cap", TIME, "The longest pause between attempts.").or("PT5M"),
    Key::new("handling-retention-window", TIME, "After how long an event is given up.").or("P7D"),
    Key::new("handling", Kind::Section(HANDLING), "The handling itself."),
];

static HANDLING: &[Key] =
    &[Key::new("enabled", Kind::Flag, "Whether handlers run here.").or("false")];

static SPRING: &[Key] = &[Key::new(
    "allow-boot-database-auto-configuration",
    Kind::Flag,
    "Of the Java framework only.",
)
.or("false")];

impl Kind {
    /// The same kind, if others stand below it.
    pub(super) fn container(&self) -> Option<Self> {
        match self {
            Self::Section(keys) => Some(Self::Section(keys)),
            Self::List(keys) => Some(Self::List(keys)),
            Self::Slots => Some(Self::Slots),
            _ => None,
        }
    }
}
