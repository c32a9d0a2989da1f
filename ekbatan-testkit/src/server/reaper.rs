//! The removal of a server when its handle or its process goes away.
//!
//! A shell waits on one end of a pipe; this process holds the other end.
//!
//! Invariants: when this end closes, because the handle is dropped or because the process
//! ended, the shell ends the server and removes its folder. The shell learns the id of
//! each process before that process creates anything that must be removed.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::error::ServerError;

const SCRIPT: &str = include_str!("reaper.sh");

/// A shell that ends a process and removes a folder, at the latest when this process
/// ends.
#[derive(Debug)]
pub(super) struct Reaper {
    shell: Child,
}

impl Reaper {
    /// Starts the shell for `folder`. The signal `end` makes the server in it end at
    /// once.
    pub(super) fn start(folder: &Path, end: &str) -> Result<Self, ServerError> {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "ekbatan-testkit-reaper"])
            .arg(folder)
            .arg(end)
            // Not in the folder that it removes, and not in a test's folder, which would
            // stay busy.
            .current_dir("/")
            // A Ctrl-C at the terminal must not reach it.
            .process_group(0)
            .stdin(Stdio::piped())
            // A reader of the tests' output must not wait for it.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(ServerError::running("sh"))?;
        Ok(Self { shell })
    }

    /// Sets the process to end, together with its process group. It replaces the previous
    /// one; `None` means that there is none.
    pub(super) fn watch(&mut self, pid: Option<u32>) -> Result<(), ServerError> {
        let line = pid.map_or_else(String::new, |pid| pid.to_string());
        let pipe = self.shell.stdin.as_mut();
        pipe.ok_or_else(|| io::Error::from(io::ErrorKind::BrokenPipe))
            .and_then(|pipe| writeln!(pipe, "{line}"))
            .map_err(ServerError::Unwatched)
    }

    /// Ends the process, removes the folder, and waits until both are gone.
    pub(super) fn end(&mut self) {
        drop(self.shell.stdin.take());
        // An error means that the shell has already ended.
        let _ = self.shell.wait();
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.end();
    }
}
