//! The table: the rooms of a crate or of a folder from the bottom to the top, each with the rooms
//! beside it that it imports.

pub struct RoomList {
    pub of_crate: &'static str,
    /// The folder of modules that holds the rooms; nothing for the whole crate.
    pub folder: &'static str,
    pub rooms: &'static [Room],
}

pub struct Room {
    pub name: &'static str,
    /// Its files and folders of modules, without `.rs` and `mod.rs`.
    pub places: &'static [&'static str],
    pub imports: &'static [&'static str],
}

#[rustfmt::skip]
pub const TABLE: [RoomList; 13] = [
    RoomList { of_crate: "ekbatan-core", folder: "", rooms: &[
        room(&["clock"], &[]),
        room(&["error_text"], &[]),
        room(&["domain"], &["clock"]),
        room(&["config"], &["domain"]),
        room(&["db"], &["clock", "domain", "config"]),
        room(&["outbox"], &["clock", "domain", "db"]),
        room(&["shard"], &["clock", "domain", "config", "db", "outbox"]),
        room(&["repository"], &["clock", "domain", "db", "shard"]),
        room(&["action"], &["clock", "error_text", "domain", "db", "outbox", "shard", "repository"]),
    ] },
    // What is read is checked; the schema describes the same keys.
    RoomList { of_crate: "ekbatan-core", folder: "config", rooms: &[
        rooms("model", &["address", "data_source", "dialect", "ekbatan_config", "error", "events_config", "jobs_config", "findings", "key", "key_path", "keys", "source_keys", "lock_config", "lock_settings", "parameters", "relay_config", "retention_config", "sharding", "shown_address", "spelling", "topic"], &[]),
        room(&["check"], &["model"]),
        room(&["read"], &["model", "check"]),
        room(&["describe"], &["model"]),
    ] },
    // No dialect imports another one. What all of them fulfil is below them, what uses them above.
    RoomList { of_crate: "ekbatan-core", folder: "db", rooms: &[
        rooms("contract", &["batch", "doorbell_session", "driver", "error", "eventlog", "exact", "fence", "merge", "nearest", "query", "rules", "running", "schema", "select", "size", "stage", "token", "sqlx_error"], &[]),
        room(&["postgres"], &["contract"]),
        room(&["mysql"], &["contract"]),
        room(&["sqlite"], &["contract"]),
        rooms("use", &["barrier_queue", "database", "dialect", "doorbell", "lane", "migration", "open_transactions", "performing", "pool", "raw", "read_fold", "same_table", "transaction", "transaction_barrier"], &["contract", "postgres", "mysql", "sqlite"]),
    ] },
    // A strategy of contention knows neither the executor nor how a call is built.
    RoomList { of_crate: "ekbatan-core", folder: "action", rooms: &[
        rooms("plan", &["action", "context", "plan", "plan_error", "enqueue", "params", "effect", "error", "retry", "fence", "contention/options", "contention/leases"], &[]),
        rooms("commit", &["attempt", "call_queues", "commit", "deadline", "key_locks", "place_calls", "sent_births", "shard_batches"], &["plan"]),
        room(&["contention"], &["plan", "commit"]),
        rooms("call", &["call", "execution", "executor", "executor_builder", "executor_state", "key_scope", "run", "trace_parent"], &["plan", "commit", "contention"]),
    ] },
    // A backend knows a server and the contract; a provider knows the contract only.
    RoomList { of_crate: "ekbatan-lock", folder: "", rooms: &[
        rooms("contract", &["backend", "error", "listing", "options", "scope"], &[]),
        room(&["backends"], &["contract"]),
        room(&["provider"], &["contract"]),
        rooms("use", &["source", "with_lock", "run_once", "lead", "execute_locked", "slots", "semaphore", "read_write"], &["contract", "provider"]),
        room(&["registry"], &["contract", "backends", "provider"]),
    ] },
    RoomList { of_crate: "ekbatan-lock", folder: "backends", rooms: &[
        room(&["process"], &[]),
        rooms("shared", &["session", "cleaning", "current_client", "hosts", "key_hints", "key_poller", "server_clock", "to_the_end"], &[]),
        room(&["postgres"], &["shared"]),
        room(&["mysql"], &["shared"]),
        room(&["sqlite"], &["shared"]),
    ] },
    // What a handler sees is below what runs it.
    RoomList { of_crate: "ekbatan-events", folder: "", rooms: &[
        rooms("errors", &["failure", "intervention", "error"], &[]),
        room(&["remote"], &["errors"]),
        rooms("contract", &["options", "decode", "dead_letter", "delivery_filter", "ending", "handler", "relay"], &["errors", "remote"]),
        room(&["handlers"], &["errors", "contract"]),
        room(&["nodes"], &["errors", "contract", "handlers"]),
        rooms("settings", &["settings", "retention"], &["errors", "remote", "contract", "nodes"]),
        room(&["delivery_status"], &["errors", "remote", "contract", "nodes"]),
        room(&["read_events"], &[]),
        room(&["claims"], &["errors", "contract", "handlers", "nodes", "read_events"]),
        room(&["runs"], &["errors", "remote", "contract", "handlers", "nodes", "read_events", "claims"]),
        room(&["worker"], &["errors", "contract", "handlers", "nodes", "settings", "delivery_status", "read_events", "claims", "runs"]),
        room(&["node"], &["errors", "contract", "handlers", "nodes", "settings", "runs", "worker"]),
        room(&["operations"], &["errors", "remote", "contract", "nodes", "delivery_status", "read_events"]),
    ] },
    // Schedules and plans know no database.
    RoomList { of_crate: "ekbatan-jobs", folder: "", rooms: &[
        rooms("schedule", &["span", "schedule", "misfire"], &[]),
        rooms("plan", &["options", "rows", "plan"], &["schedule"]),
        rooms("store", &["error", "store"], &["schedule", "plan"]),
        rooms("job", &["job", "job_set"], &["schedule", "plan", "store"]),
        room(&["job_run"], &["plan", "store", "job"]),
        rooms("node", &["settings", "membership", "heart", "worker", "node"], &["schedule", "plan", "store", "job", "job_run"]),
        room(&["operations"], &["schedule", "plan", "store"]),
        room(&["windows"], &["schedule", "plan", "job", "node"]),
    ] },
    // The row of a window knows nobody; what an application writes is below what runs it.
    RoomList { of_crate: "ekbatan-jobs", folder: "windows", rooms: &[
        room(&["window"], &[]),
        room(&["cutoffs"], &[]),
        rooms("contract", &["error", "series"], &["window", "cutoffs"]),
        rooms("actions", &["open_window", "begin_closing", "chunk", "finish_closing"], &["window", "cutoffs", "contract"]),
        rooms("steps", &["close_windows", "finish_windows"], &["window", "contract", "actions"]),
        room(&["front"], &["window", "contract", "actions", "steps"]),
    ] },
    // A broker knows no events, only messages.
    RoomList { of_crate: "ekbatan-relay", folder: "", rooms: &[
        room(&["address"], &[]),
        rooms("contract", &["message", "broker", "error"], &[]),
        room(&["in_order"], &["contract"]),
        room(&["in_process"], &["contract"]),
        room(&["relay"], &["contract", "in_order"]),
    ] },
    RoomList { of_crate: "ekbatan-relay-kafka", folder: "", rooms: &[
        rooms("settings", &["error", "settings"], &[]),
        room(&["answers"], &[]),
        rooms("producer", &["missing_topics", "node_producer"], &["settings", "answers"]),
        room(&["broker"], &["settings", "answers", "producer"]),
    ] },
    RoomList { of_crate: "ekbatan-relay-nats", folder: "", rooms: &[
        rooms("settings", &["error", "settings"], &[]),
        room(&["denials"], &[]),
        room(&["connection"], &["settings", "denials"]),
        room(&["receipts"], &[]),
        room(&["broker"], &["settings", "connection", "receipts"]),
    ] },
    RoomList { of_crate: "ekbatan-relay-rabbitmq", folder: "", rooms: &[
        rooms("settings", &["error", "settings"], &[]),
        room(&["socket"], &[]),
        room(&["connection"], &["settings", "socket"]),
        room(&["wave"], &["settings", "connection"]),
        room(&["broker"], &["settings", "connection", "wave"]),
    ] },
];

/// A room that is one file or folder.
const fn room(places: &'static [&'static str; 1], imports: &'static [&'static str]) -> Room {
    Room { name: places[0], places, imports }
}

/// A room that is several files or folders.
const fn rooms(
    name: &'static str,
    places: &'static [&'static str],
    imports: &'static [&'static str],
) -> Room {
    Room { name, places, imports }
}

impl RoomList {
    /// The room that a file belongs to. A place that is listed by itself does not belong to the
    /// room whose folder holds it.
    pub fn room_of(&self, file: &str) -> Option<&Room> {
        let path = self.path_of(file)?;
        let holds = |place: &str| {
            path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let rooms = self.rooms.iter();
        let places = rooms.flat_map(|room| room.places.iter().map(move |place| (room, *place)));
        let innermost =
            places.filter(|(_, place)| holds(place)).max_by_key(|(_, place)| place.len());
        innermost.map(|(room, _)| room)
    }

    /// Whether a file stands in the folder and in none of its rooms. The root of the folder only
    /// lists its modules.
    pub fn lacks(&self, file: &str) -> bool {
        self.path_of(file).is_some_and(|path| !path.is_empty()) && self.room_of(file).is_none()
    }

    /// The path of a file's module within the folder; empty for the root of the folder.
    fn path_of<'f>(&self, file: &'f str) -> Option<&'f str> {
        let path = file.strip_suffix(".rs").unwrap_or(file);
        let path = path.strip_suffix("/mod").unwrap_or(path);
        let path = if matches!(path, "lib" | "main") { "" } else { path };
        let rest = path.strip_prefix(self.folder)?;
        match rest.strip_prefix('/') {
            Some(inside) => Some(inside),
            None if rest.is_empty() || self.folder.is_empty() => Some(rest),
            None => None,
        }
    }
}

impl Room {
    pub fn may_import(&self, other: &str) -> bool {
        self.imports.contains(&other)
    }
}
