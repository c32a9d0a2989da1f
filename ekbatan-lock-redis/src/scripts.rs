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
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            take: Script::new(include_str!("scripts/take.lua")),
            extend: Script::new(include_str!("scripts/extend.lua")),
            release: Script::new(include_str!("scripts/release.lua")),
            force: Script::new(include_str!("scripts/force.lua")),
            inspect: Script::new(include_str!("scripts/inspect.lua")),
        }
    }
}
