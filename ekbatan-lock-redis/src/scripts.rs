//! The scripts. The server executes each of them atomically.
//!
//! Invariants: a script can be sent again after its answer was lost: it answers the same, or that
//! there is nothing to do any more.
//! Only `force` ends a lease of another owner.

use redis::{Cmd, Script};

pub(crate) struct Scripts {
    pub(crate) take: LockScript,
    pub(crate) extend: LockScript,
    pub(crate) release: LockScript,
    pub(crate) force: LockScript,
    pub(crate) inspect: LockScript,
    pub(crate) wait: LockScript,
}

/// A script that keeps the order of the processes that wait.
macro_rules! ordered {
    ($file:literal) => {
        LockScript::new(concat!(include_str!("scripts/waiters.lua"), include_str!($file)))
    };
}

impl Scripts {
    pub(crate) fn new() -> Self {
        Self {
            take: ordered!("scripts/take.lua"),
            extend: LockScript::new(include_str!("scripts/extend.lua")),
            release: ordered!("scripts/release.lua"),
            force: ordered!("scripts/force.lua"),
            inspect: LockScript::new(include_str!("scripts/inspect.lua")),
            wait: ordered!("scripts/wait.lua"),
        }
    }
}

pub(crate) struct LockScript {
    text: &'static str,
    hash: String,
}

/// How a call names its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// By its hash, which the server may not know.
    Hash,
    /// By its text, after which the server knows the hash.
    Text,
}

/// A script with its keys and arguments.
pub(crate) struct ScriptCall<'s> {
    script: &'s LockScript,
    keys: Vec<String>,
    arguments: Vec<String>,
}

impl LockScript {
    fn new(text: &'static str) -> Self {
        Self { text, hash: Script::new(text).get_hash().to_owned() }
    }

    pub(crate) fn key(&self, key: String) -> ScriptCall<'_> {
        ScriptCall { script: self, keys: vec![key], arguments: Vec::new() }
    }
}

impl ScriptCall<'_> {
    pub(crate) fn key(mut self, key: String) -> Self {
        self.keys.push(key);
        self
    }

    pub(crate) fn arg(mut self, argument: impl ToString) -> Self {
        self.arguments.push(argument.to_string());
        self
    }

    pub(crate) fn command(&self, by: By) -> Cmd {
        let (name, script) = match by {
            By::Hash => ("EVALSHA", &*self.script.hash),
            By::Text => ("EVAL", self.script.text),
        };
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len()).arg(&self.keys).arg(&self.arguments);
        command
    }
}
