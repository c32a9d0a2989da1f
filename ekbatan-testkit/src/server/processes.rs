//! Processes as the system sees them: finding, signalling and outliving them.
//!
//! What always holds: a process is known by its id and the time of its start, so
//! that another one that got the same id later is not mistaken for it. A process
//! that ended but was not yet collected by its parent counts as gone.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::ServerError;

/// How often to look again when nothing tells that a process ended.
const GLANCE: Duration = Duration::from_millis(5);

/// Sends its first argument, a signal, to the processes named by the others. One
/// that is gone already has what it was to get.
const SIGNAL: &str = r#"signal=$1; shift; for pid; do kill -s "$signal" "$pid"; done; :"#;

/// A process that may or may not be running.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    started: u64,
}

impl Process {
    /// The processes that `parent` has started and that have not ended.
    pub(super) fn children_of(parent: u32) -> Result<Vec<Self>, ServerError> {
        let mut children = Vec::new();
        for entry in fs::read_dir("/proc").map_err(ServerError::Processes)? {
            let entry = entry.map_err(ServerError::Processes)?;
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // Other entries are no processes, and some end while we look.
            if let Some((process, status)) = pid.and_then(look)
                && status.parent == parent
                && status.runs()
            {
                children.push(process);
            }
        }
        Ok(children)
    }

    fn is_running(&self) -> bool {
        look(self.pid).is_some_and(|(process, status)| process == *self && status.runs())
    }
}

/// Stops a process, so that it neither acts nor starts others until it is
/// continued or killed.
pub(super) fn freeze(pid: u32, patience: Duration) -> Result<(), ServerError> {
    signal("STOP", [pid])?;
    // The signal may find it in the middle of starting another process.
    wait_for_none(patience, || {
        let acts = look(pid).is_some_and(|(_, status)| status.runs() && status.state != "T");
        if acts { vec![pid] } else { Vec::new() }
    })
}

/// Waits until none of `processes` runs.
pub(super) fn wait_for_end(processes: &[Process], patience: Duration) -> Result<(), ServerError> {
    wait_for_none(patience, || {
        let running = processes.iter().filter(|process| process.is_running());
        running.map(|process| process.pid).collect()
    })
}

/// Waits until there is none of the processes that `lingering` looks for.
fn wait_for_none(patience: Duration, lingering: impl Fn() -> Vec<u32>) -> Result<(), ServerError> {
    let start = Instant::now();
    loop {
        let pids = lingering();
        if pids.is_empty() {
            return Ok(());
        }
        let waited = start.elapsed();
        if waited > patience {
            return Err(ServerError::Lingering { pids, waited });
        }
        thread::sleep(GLANCE);
    }
}

/// Sends `signal`, such as `KILL`, to each process.
pub(super) fn signal(signal: &str, pids: impl IntoIterator<Item = u32>) -> Result<(), ServerError> {
    Command::new("sh")
        .args(["-c", SIGNAL, "signal", signal])
        .args(pids.into_iter().map(|pid| pid.to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(ServerError::running("sh"))?;
    Ok(())
}

#[derive(Debug)]
struct Status {
    parent: u32,
    /// The letter that stands for it in `/proc`.
    state: String,
}

impl Status {
    /// Whether it has not ended, if perhaps stopped.
    fn runs(&self) -> bool {
        !matches!(self.state.as_str(), "Z" | "X")
    }
}

fn look(pid: u32) -> Option<(Process, Status)> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads a line such as `7 (name) S 1 …`. The name may contain anything.
fn parse(pid: u32, line: &str) -> Option<(Process, Status)> {
    let (_, fields) = line.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.to_owned();
    let parent = fields.next()?.parse().ok()?;
    // The 22nd field of the line; the third and fourth have been taken.
    let started = fields.nth(17)?.parse().ok()?;
    Some((Process { pid, started }, Status { parent, state }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_past_any_name() {
        let line = "7 (a) b) c) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let (process, status) = parse(7, line).unwrap();
        assert_eq!(process, Process { pid: 7, started: 4242 });
        assert_eq!(status.parent, 3);
        assert!(status.runs());
    }

    #[test]
    fn children_are_found_and_outlived() {
        let mut child =
            Command::new("sh").args(["-c", "read -r line"]).stdin(Stdio::piped()).spawn().unwrap();
        let ours = Process::children_of(std::process::id()).unwrap();
        let found = ours.iter().find(|process| process.pid == child.id());
        let found = found.expect("our child is among our children").clone();
        freeze(child.id(), Duration::from_secs(60)).unwrap();
        signal("KILL", [child.id()]).unwrap();
        // Not collected yet, and gone all the same.
        wait_for_end(&[found], Duration::from_secs(60)).unwrap();
        child.wait().unwrap();
    }
}
