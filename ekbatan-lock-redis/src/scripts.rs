//! What is done at the server: scripts, each of which is done as a whole or not at all.
//!
//! What always holds: doing one twice is as doing it once, so that one whose answer was lost
//! may be sent again; and only `force` ends what is not its caller's.

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
