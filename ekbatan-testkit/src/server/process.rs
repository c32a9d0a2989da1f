//! Finding, signalling and waiting for operating system processes.
//!
//! Invariants: a process is identified by its id and its start time, so a later process
//! with the same id is not mistaken for it. A zombie, which has ended but whose parent
//! has not collected it, counts as ended once it has no other thread: until then its
//! sockets are open.

use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::error::ServerError;

/// How often to check whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Sends the signal in the first argument to the processes in the others. It ignores
/// processes that have already ended.
const SIGNAL: &str = r#"signal=$1; shift; for pid; do kill -s "$signal" "$pid"; done; :"#;

/// A process that may have ended since it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: u32,
    started: u64,
}

impl Process {
    /// The children of `parent` that have not ended.
    pub(super) fn children_of(parent: u32) -> Result<Vec<Self>, ServerError> {
        let mut children = Vec::new();
        for entry in fs::read_dir("/proc").map_err(ServerError::Processes)? {
            let entry = entry.map_err(ServerError::Processes)?;
            let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
            // Skip entries that are not processes, and processes that end during the
            // scan.
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

/// Stops a process with `SIGSTOP`, so that it starts no other process until it is
/// continued or killed.
pub(super) fn freeze(pid: u32, patience: Duration) -> Result<(), ServerError> {
    signal("STOP", [pid])?;
    // `SIGSTOP` takes effect only after a `fork` that is in progress.
    wait_for_none(patience, || {
        let active = look(pid).is_some_and(|(_, status)| status.runs() && status.state != "T");
        if active { vec![pid] } else { Vec::new() }
    })
}

/// Waits until none of `processes` runs.
pub(super) fn wait_for_end(processes: &[Process], patience: Duration) -> Result<(), ServerError> {
    wait_for_none(patience, || {
        let running = processes.iter().filter(|process| process.is_running());
        running.map(|process| process.pid).collect()
    })
}

/// Waits until `lingering` returns no process.
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
        thread::sleep(POLL_INTERVAL);
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
    /// The state letter in `/proc/PID/stat`.
    state: String,
    threads: u32,
}

impl Status {
    /// Whether the process has not ended. A stopped process has not ended.
    fn runs(&self) -> bool {
        match self.state.as_str() {
            "X" => false,
            // Its first thread has ended; the others may end later.
            "Z" => self.threads > 1,
            _ => true,
        }
    }
}

fn look(pid: u32) -> Option<(Process, Status)> {
    parse(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a line such as `7 (name) S 1 …`. The name may contain any character.
fn parse(pid: u32, line: &str) -> Option<(Process, Status)> {
    let (_, fields) = line.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let state = fields.next()?.to_owned();
    let parent = fields.next()?.parse().ok()?;
    // Fields 20 and 22 of the line; fields 3 and 4 are already consumed.
    let threads = fields.nth(15)?.parse().ok()?;
    let started = fields.nth(1)?.parse().ok()?;
    Some((Process { pid, started }, Status { parent, state, threads }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_whatever_the_name_contains() {
        let line = "7 (a) b) c) S 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4242 0 0";
        let (process, status) = parse(7, line).unwrap();
        assert_eq!(process, Process { pid: 7, started: 4242 });
        assert_eq!(status.parent, 3);
        assert!(status.runs());
    }

    #[test]
    fn a_zombie_has_ended_once_it_has_no_other_thread() {
        let line = "7 (a) Z 3 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 THREADS 0 4242 0 0";
        for (threads, runs) in [("0", false), ("1", false), ("2", true)] {
            let (_, status) = parse(7, &line.replace("THREADS", threads)).unwrap();
            assert_eq!(status.runs(), runs, "{threads}");
        }
    }

    #[test]
    fn children_are_found_and_waited_for() {
        let mut child =
            Command::new("sh").args(["-c", "read -r line"]).stdin(Stdio::piped()).spawn().unwrap();
        let children = Process::children_of(std::process::id()).unwrap();
        let found = children.iter().find(|process| process.pid == child.id());
        let found = found.expect("the child is among the children").clone();
        freeze(child.id(), Duration::from_secs(60)).unwrap();
        signal("KILL", [child.id()]).unwrap();
        // The child is a zombie now, which counts as ended.
        wait_for_end(&[found], Duration::from_secs(60)).unwrap();
        child.wait().unwrap();
    }
}
