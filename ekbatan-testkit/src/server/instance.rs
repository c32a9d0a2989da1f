//! The folder, port and processes of one private server.
//!
//! Every function here blocks, so it must run on a thread for blocking work.
//!
//! Invariants: [`Instance::process`] is the running process, unless it is known to have
//! ended. The reaper knows of that process. At most one process runs on a folder.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::error::ServerError;
use super::port;
use super::process::{self, Process};
use super::product::{Product, ServerEnv};
use super::reaper::Reaper;

/// Maximum time for a process to end.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How often to check whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// How many lines of the server's log an error includes.
const LOG_LINES: usize = 30;

/// A server's folder and the process that runs on it.
#[derive(Debug)]
pub(super) struct Instance<P> {
    product: P,
    env: ServerEnv,
    process: Option<Child>,
    reaper: Reaper,
}

impl<P: Product> Instance<P> {
    /// Creates and prepares the folder of a new server. `launch` starts it.
    pub(super) fn create(product: P) -> Result<Self, ServerError> {
        let temporary = tempfile::Builder::new()
            .prefix(&format!("ekbatan-{}-", P::NAME))
            .tempdir()
            .map_err(ServerError::unusable(&std::env::temp_dir()))?;
        // The server reports its folder in this form.
        let folder =
            fs::canonicalize(temporary.path()).map_err(ServerError::unusable(temporary.path()))?;
        let account = P::account(&folder)?;
        let reaper = Reaper::start(&folder, P::END)?;
        // From here on the reaper removes the folder.
        let _ = temporary.keep();
        let env = ServerEnv { account, folder, port: port::free()? };
        let mut instance = Self { product, env, process: None, reaper };
        instance.prepare()?;
        Ok(instance)
    }

    pub(super) fn product(&self) -> &P {
        &self.product
    }

    pub(super) fn env(&self) -> &ServerEnv {
        &self.env
    }

    /// Moves a stopped server to another port if another process listens on its port.
    /// Returns whether it moved.
    pub(super) fn change_taken_port(&mut self) -> Result<bool, ServerError> {
        let taken = port::is_taken(self.env.port);
        if taken {
            self.env.port = port::free()?;
        }
        Ok(taken)
    }

    /// Starts the server's main process.
    pub(super) fn launch(&mut self) -> Result<(), ServerError> {
        let log = self.log().map_err(ServerError::unusable(&self.env.folder))?;
        let errors = log.try_clone().map_err(ServerError::unusable(&self.env.folder))?;
        let mut command = self.product.server(&self.env);
        self.isolate(&mut command).stdout(log).stderr(errors);
        let process = command.spawn().map_err(ServerError::running(program(&command)))?;
        let pid = process.id();
        self.process = Some(process);
        self.reaper.watch(Some(pid))
    }

    /// Whether the server was launched, and neither killed nor shut down since.
    pub(super) fn is_launched(&self) -> bool {
        self.process.is_some()
    }

    /// The exit status of the server, if it was launched and has ended by itself.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, ServerError> {
        let Some(process) = &mut self.process else {
            return Ok(None);
        };
        let status = process.try_wait().map_err(ServerError::Processes)?;
        if status.is_some() {
            self.forget()?;
        }
        Ok(status)
    }

    /// Kills the server, as a crash would, and waits until all its processes have ended.
    pub(super) fn kill(&mut self) -> Result<(), ServerError> {
        let Some(main) = &mut self.process else {
            return Ok(());
        };
        let pid = main.id();
        // A stopped process cannot start another one after the scan.
        process::freeze(pid, TIMEOUT)?;
        let children = Process::children_of(pid)?;
        let child_pids = children.iter().map(|child| child.pid);
        // The main process first: otherwise it sees its children end and starts a recovery.
        process::signal("KILL", [pid].into_iter().chain(child_pids))?;
        main.wait().map_err(ServerError::Processes)?;
        process::wait_for_end(&children, TIMEOUT)?;
        self.forget()
    }

    /// Shuts the server down in an orderly way and closes all connections.
    pub(super) fn shut_down(&mut self) -> Result<(), ServerError> {
        let Some(main) = &self.process else {
            return Ok(());
        };
        let pid = main.id();
        process::signal(P::SHUTDOWN, [pid])?;
        let start = Instant::now();
        while self.is_launched() && self.ended()?.is_none() {
            let waited = start.elapsed();
            if waited > TIMEOUT {
                let pids = vec![pid];
                return Err(ServerError::Lingering { pids, waited });
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The server's log.
    pub(super) fn whole_log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// The last lines of the server's log.
    pub(super) fn end_of_log(&self) -> String {
        let log = self.whole_log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    fn prepare(&mut self) -> Result<(), ServerError> {
        let mut command = self.product.preparation(&self.env);
        self.isolate(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
        let program = program(&command);
        let child = command.spawn().map_err(ServerError::running(&program))?;
        self.reaper.watch(Some(child.id()))?;
        let output = child.wait_with_output().map_err(ServerError::running(&program))?;
        self.reaper.watch(None)?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        Err(ServerError::Preparation {
            program,
            status: output.status,
            output: String::from_utf8_lossy(&said).into_owned(),
        })
    }

    /// Gives a command of the server a fixed environment.
    fn isolate<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .current_dir(&self.env.folder)
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            // Some servers leave temporary files behind, or conflict over a shared folder
            // for them.
            .env("TMPDIR", &self.env.folder)
            // A Ctrl-C at the terminal is for the tests only. The reaper ends the process
            // group.
            .process_group(0)
            .stdin(Stdio::null())
    }

    fn forget(&mut self) -> Result<(), ServerError> {
        self.process = None;
        self.reaper.watch(None)
    }

    fn log_path(&self) -> PathBuf {
        self.env.folder.join("log")
    }

    fn log(&self) -> io::Result<File> {
        File::options().create(true).append(true).open(self.log_path())
    }
}

impl<P> Drop for Instance<P> {
    fn drop(&mut self) {
        self.reaper.end();
        if let Some(process) = &mut self.process {
            // The reaper has already ended the process. This covers a reaper that was
            // killed, and collects the zombie.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// The file name of the program that a command runs.
fn program(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned()
}
