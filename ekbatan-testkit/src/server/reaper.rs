//! The end of a server, whatever becomes of the process that started it.
//!
//! A shell waits at one end of a pipe of which we hold the other. What always
//! holds: when our end is closed, because the handle is dropped or because the
//! system closes it for a process that is no more, the shell ends the server and
//! removes its folder. It is told of each process before that process has done
//! anything worth cleaning up.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::ServerError;

const SCRIPT: &str = include_str!("reaper.sh");

/// Ends a process and removes a folder at the latest when we are gone.
#[derive(Debug)]
pub(super) struct Reaper {
    shell: Child,
}

impl Reaper {
    /// Takes over the care for `folder`. The signal `end` makes a server that
    /// runs there end at once.
    pub(super) fn start(folder: &Path, end: &str) -> Result<Self, ServerError> {
        let shell = Command::new("sh")
            .args(["-c", SCRIPT, "ekbatan-testkit-reaper"])
            .arg(folder)
            .arg(end)
            // Not in the folder that it removes, nor where it keeps a test's
            // own folder busy.
            .current_dir("/")
            // A Ctrl-C at the terminal is not for it.
            .process_group(0)
            .stdin(Stdio::piped())
            // Whoever reads the tests' output must not wait for it.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(ServerError::running("sh"))?;
        Ok(Self { shell })
    }

    /// From now on `pid`, with the group of processes that it leads, is what to
    /// end, and nothing else.
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
        // If it cannot be waited for it has ended already.
        let _ = self.shell.wait();
    }
}

impl Drop for Reaper {
    fn drop(&mut self) {
        self.end();
    }
}
