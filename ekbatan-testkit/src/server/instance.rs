//! The folder, port and processes of one private server.
//!
//! Everything here blocks and belongs on a thread that may. What always holds:
//! [`Instance::process`] is the process that runs, as long as it is not known to
//! have ended; the reaper knows of it; and at most one runs on a folder.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::processes::{self, Process};
use super::reaper::Reaper;
use super::{Place, Product, ServerError, port};

/// How long a process may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look whether a process has ended.
const GLANCE: Duration = Duration::from_millis(5);
/// How much of a server's log goes into an error.
const LOG_LINES: usize = 30;

/// A server's folder and what runs on it.
#[derive(Debug)]
pub(super) struct Instance<P> {
    product: P,
    place: Place,
    process: Option<Child>,
    reaper: Reaper,
}

impl<P: Product> Instance<P> {
    /// Makes the folder of a new server, which is yet to be launched.
    pub(super) fn create(product: P) -> Result<Self, ServerError> {
        let temporary = tempfile::Builder::new()
            .prefix(&format!("ekbatan-{}-", P::NAME))
            .tempdir()
            .map_err(unusable(&std::env::temp_dir()))?;
        // As the server will name it.
        let folder = fs::canonicalize(temporary.path()).map_err(unusable(temporary.path()))?;
        let account = P::account(&folder)?;
        let reaper = Reaper::start(&folder, P::END)?;
        // The reaper's from here on.
        let _ = temporary.keep();
        let place = Place { account, folder, port: port::free()? };
        let mut instance = Self { product, place, process: None, reaper };
        instance.prepare()?;
        Ok(instance)
    }

    pub(super) fn product(&self) -> &P {
        &self.product
    }

    pub(super) fn place(&self) -> &Place {
        &self.place
    }

    /// Moves a server that is not running to another port if somebody else
    /// listens on its own, and says whether it did.
    pub(super) fn evade(&mut self) -> Result<bool, ServerError> {
        let taken = port::is_taken(self.place.port);
        if taken {
            self.place.port = port::free()?;
        }
        Ok(taken)
    }

    /// Starts the server's first process.
    pub(super) fn launch(&mut self) -> Result<(), ServerError> {
        let log = self.log().map_err(unusable(&self.place.folder))?;
        let errors = log.try_clone().map_err(unusable(&self.place.folder))?;
        let mut command = self.product.server(&self.place);
        self.settle(&mut command).stdout(log).stderr(errors);
        let process = command.spawn().map_err(ServerError::running(program(&command)))?;
        let pid = process.id();
        self.process = Some(process);
        self.reaper.watch(Some(pid))
    }

    /// Whether the server was launched and neither killed nor shut down since.
    pub(super) fn is_launched(&self) -> bool {
        self.process.is_some()
    }

    /// How the server ended, if it was launched and has ended by itself.
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

    /// Ends the server without giving it a chance to say goodbye, as a crash
    /// would, and waits until none of its processes is left.
    pub(super) fn kill(&mut self) -> Result<(), ServerError> {
        let Some(process) = &mut self.process else {
            return Ok(());
        };
        let pid = process.id();
        // Frozen, it starts no process that we would not find.
        processes::freeze(pid, PATIENCE)?;
        let children = Process::children_of(pid)?;
        let child_pids = children.iter().map(|child| child.pid);
        // Itself first, lest it sees its children die and begins a recovery.
        processes::signal("KILL", [pid].into_iter().chain(child_pids))?;
        process.wait().map_err(ServerError::Processes)?;
        processes::wait_for_end(&children, PATIENCE)?;
        self.forget()
    }

    /// Has the server end in good order, ending all connections.
    pub(super) fn shut_down(&mut self) -> Result<(), ServerError> {
        let Some(process) = &self.process else {
            return Ok(());
        };
        let pid = process.id();
        processes::signal(P::SHUTDOWN, [pid])?;
        let start = Instant::now();
        while self.is_launched() && self.ended()?.is_none() {
            let waited = start.elapsed();
            if waited > PATIENCE {
                let pids = vec![pid];
                return Err(ServerError::Lingering { pids, waited });
            }
            thread::sleep(GLANCE);
        }
        Ok(())
    }

    /// The last lines that the server logged.
    pub(super) fn end_of_log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }

    fn prepare(&mut self) -> Result<(), ServerError> {
        let mut command = self.product.preparation(&self.place);
        self.settle(&mut command).stdout(Stdio::piped()).stderr(Stdio::piped());
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

    /// Has one of the server's programs run in an environment that is always the
    /// same.
    fn settle<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command
            .current_dir(&self.place.folder)
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            // Some leave their temporary files behind, or get in each other's way
            // where they share a folder for them.
            .env("TMPDIR", &self.place.folder)
            // A Ctrl-C at the terminal is for the tests; the reaper, which wants
            // a group, does the rest.
            .process_group(0)
            .stdin(Stdio::null())
    }

    fn forget(&mut self) -> Result<(), ServerError> {
        self.process = None;
        self.reaper.watch(None)
    }

    fn log_path(&self) -> PathBuf {
        self.place.folder.join("log")
    }

    fn log(&self) -> io::Result<File> {
        File::options().create(true).append(true).open(self.log_path())
    }
}

impl<P> Drop for Instance<P> {
    fn drop(&mut self) {
        self.reaper.end();
        if let Some(process) = &mut self.process {
            // Ended by the reaper; this is for the case that somebody ended the
            // reaper, and for the process table.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

fn unusable(folder: &Path) -> impl FnOnce(io::Error) -> ServerError {
    let folder = folder.to_owned();
    move |source| ServerError::Folder { folder, source }
}

/// The name of the program that a command runs.
fn program(command: &Command) -> String {
    let program = Path::new(command.get_program());
    program.file_name().unwrap_or(command.get_program()).to_string_lossy().into_owned()
}
