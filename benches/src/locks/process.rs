//! The processes of one measurement: started together, released at once, and read to their end.
//!
//! Invariants: no child process outlives the measurement.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use super::options::{LockMode, Measure, Provider};
use super::protocol::{GO, READY, port_after, read};
use super::timeline::KeyHold;
use crate::failure::Failure;

/// A measurement that is ready to start its processes.
pub struct Contest {
    arguments: Vec<String>,
    processes: usize,
}

/// A running child process, which holds one or more clients.
struct ChildProcess {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // `kill` fails if the process has already exited; `wait` collects it in both cases.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Contest {
    pub fn new(
        provider: Provider,
        measure: Measure,
        mode: LockMode,
        lasts: Duration,
        address: &str,
    ) -> Self {
        let arguments = [
            "locks-child",
            "--provider",
            provider.name(),
            "--measure",
            measure.name(),
            "--mode",
            mode.name(),
            "--seconds",
            &lasts.as_secs_f64().to_string(),
            "--address",
            address,
        ];
        Self { arguments: arguments.map(str::to_owned).into(), processes: measure.processes() }
    }

    /// Runs the measurement and blocks until it ends. Returns the holds in the order in which the
    /// key was acquired.
    pub fn run(self) -> Result<Vec<KeyHold>, Failure> {
        let mut children = Vec::new();
        for _ in 0..self.processes {
            children.push(self.start()?);
        }
        let mut ports = Vec::new();
        for child in &mut children {
            let mut line = String::new();
            child.stdout.read_line(&mut line)?;
            let port = port_after(&line, READY);
            ports.push(port.ok_or("a child process did not become ready; see its error above")?);
        }
        // With two processes, each gets the port of the other one. Other measures ignore it.
        for (child, other) in children.iter_mut().zip(ports.iter().rev()) {
            writeln!(child.stdin, "{GO} {other}")?;
        }
        let mut holds = Vec::new();
        for (process, child) in (0..).zip(&mut children) {
            let mut written = Vec::new();
            child.stdout.read_to_end(&mut written)?;
            if !child.child.wait()?.success() {
                return Err("a child process failed; see its error above".into());
            }
            holds.extend(read(process, &written));
        }
        holds.sort_unstable_by_key(|hold| hold.acquired);
        Ok(holds)
    }

    fn start(&self) -> Result<ChildProcess, Failure> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        match (child.stdin.take(), child.stdout.take()) {
            (Some(stdin), Some(stdout)) => {
                Ok(ChildProcess { child, stdin, stdout: BufReader::new(stdout) })
            }
            _ => Err("a child process has no pipes".into()),
        }
    }
}
