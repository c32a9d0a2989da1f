//! The scripts. The server executes each of them atomically.
//!
//! Invariants: a script is idempotent, so that it can be sent again after its answer was lost.
//! Only `force` ends a lease of another owner.

use redis::Script;

pub(crate) struct Scripts {
    pub(crate) take: Script,
    pub(crate) extend: Script,
    pub(crate) release: Script,
    pub(crate) force: Script,
    pub(crate) inspect: Script,
    pub(crate) wait: Script,
}

/// A script that keeps the order of the processes that wait.
macro_rules! ordered {
    ($file:literal) => {
        Script::new(concat!(include_str!("scripts/waiters.lua"), include_str!($file)))
    };
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            take: ordered!("scripts/take.lua"),
            extend: Script::new(include_str!("scripts/extend.lua")),
            release: ordered!("scripts/release.lua"),
            force: ordered!("scripts/force.lua"),
            inspect: Script::new(include_str!("scripts/inspect.lua")),
            wait: ordered!("scripts/wait.lua"),
        }
    }
}
