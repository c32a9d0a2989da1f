//! The folder, port and processes of one private server.
//!
//! Everything here blocks and belongs on a thread that may. What always holds:
//! [`Cluster::postmaster`] is the process that runs, as long as it is not known
//! to have ended; the reaper knows of it; and at most one runs on a folder.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::ServerError;
use super::account::Account;
use super::processes::{self, Process};
use super::programs::Programs;
use super::reaper::Reaper;
use super::settings::Settings;

/// The only role of a private server, which may do everything.
pub(super) const SUPERUSER: &str = "postgres";

/// Servers listen below the ports that systems hand out for outgoing
/// connections, or a stopped server might not get its port back.
const PORTS: std::ops::Range<u16> = 10_000..32_000;
/// How many ports to try before asking what is wrong with this machine.
const PORT_TRIES: usize = 1_000;
/// How long a process may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often to look whether a process has ended.
const GLANCE: Duration = Duration::from_millis(5);
/// How much of a server's log goes into an error.
const LOG_LINES: usize = 30;

/// A server's folder and what runs on it.
#[derive(Debug)]
pub(super) struct Cluster {
    programs: Programs,
    account: Account,
    settings: Settings,
    folder: PathBuf,
    port: u16,
    postmaster: Option<Child>,
    reaper: Reaper,
}

impl Cluster {
    /// Makes the folder of a new server, which is yet to be launched.
    pub(super) fn create(settings: Settings) -> Result<Self, ServerError> {
        let programs = Programs::find()?;
        let temporary = tempfile::Builder::new()
            .prefix("ekbatan-postgres-")
            .tempdir()
            .map_err(unusable(&std::env::temp_dir()))?;
        // As the server will name it.
        let folder = fs::canonicalize(temporary.path()).map_err(unusable(temporary.path()))?;
        let account = Account::take_over(&folder)?;
        let reaper = Reaper::start(&folder)?;
        // The reaper's from here on.
        let _ = temporary.keep();
        let mut cluster = Self {
            programs,
            account,
            settings,
            folder,
            port: free_port()?,
            postmaster: None,
            reaper,
        };
        cluster.initialize()?;
        Ok(cluster)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Where the server keeps its data, as it would say itself.
    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Moves a server that is not running to another port if somebody else
    /// listens on its own, and says whether it did.
    pub(super) fn evade(&mut self) -> Result<bool, ServerError> {
        let taken = bind(self.port).is_err();
        if taken {
            self.port = free_port()?;
        }
        Ok(taken)
    }

    /// Starts the server's first process.
    pub(super) fn launch(&mut self) -> Result<(), ServerError> {
        let log = self.log().map_err(unusable(&self.folder))?;
        let errors = log.try_clone().map_err(unusable(&self.folder))?;
        let (folder, port) = (self.folder.display().to_string(), self.port.to_string());
        let private = [
            ("listen_addresses", "127.0.0.1"),
            ("port", port.as_str()),
            ("unix_socket_directories", folder.as_str()),
            ("logging_collector", "off"),
        ];
        let mut command = self.command(&self.programs.postgres());
        command
            .arg("-D")
            .arg(self.data())
            .args(self.settings.arguments(&private))
            .stdout(log)
            .stderr(errors);
        let postmaster = command.spawn().map_err(ServerError::running("postgres"))?;
        let pid = postmaster.id();
        self.postmaster = Some(postmaster);
        self.reaper.watch(Some(pid))
    }

    /// Whether the server was launched and neither killed nor shut down since.
    pub(super) fn is_launched(&self) -> bool {
        self.postmaster.is_some()
    }

    /// How the server ended, if it was launched and has ended by itself.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, ServerError> {
        let Some(postmaster) = &mut self.postmaster else {
            return Ok(None);
        };
        let status = postmaster.try_wait().map_err(ServerError::Processes)?;
        if status.is_some() {
            self.forget()?;
        }
        Ok(status)
    }

    /// Ends the server without giving it a chance to say goodbye, as a crash
    /// would, and waits until none of its processes is left.
    pub(super) fn kill(&mut self) -> Result<(), ServerError> {
        let Some(postmaster) = &mut self.postmaster else {
            return Ok(());
        };
        let pid = postmaster.id();
        // Frozen, it starts no process that we would not find.
        processes::freeze(pid, PATIENCE)?;
        let backends = Process::children_of(pid)?;
        let backend_pids = backends.iter().map(|backend| backend.pid);
        // Itself first, lest it sees its children die and begins a recovery.
        processes::signal("KILL", [pid].into_iter().chain(backend_pids))?;
        postmaster.wait().map_err(ServerError::Processes)?;
        processes::wait_for_end(&backends, PATIENCE)?;
        self.forget()
    }

    /// Has the server end in good order, ending all connections.
    pub(super) fn shut_down(&mut self) -> Result<(), ServerError> {
        let Some(postmaster) = &self.postmaster else {
            return Ok(());
        };
        let pid = postmaster.id();
        processes::signal("INT", [pid])?;
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

    fn initialize(&mut self) -> Result<(), ServerError> {
        let mut command = self.command(&self.programs.initdb());
        command
            .arg("--pgdata")
            .arg(self.data())
            .args(["--username", SUPERUSER, "--auth", "trust"])
            .args(["--encoding", "UTF8", "--no-locale", "--no-sync"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let initdb = command.spawn().map_err(ServerError::running("initdb"))?;
        self.reaper.watch(Some(initdb.id()))?;
        let output = initdb.wait_with_output().map_err(ServerError::running("initdb"))?;
        self.reaper.watch(None)?;
        if output.status.success() {
            return Ok(());
        }
        let said = [output.stdout, output.stderr].concat();
        Err(ServerError::Initdb {
            status: output.status,
            output: String::from_utf8_lossy(&said).into_owned(),
        })
    }

    /// One of the server's programs, in an environment that is always the same.
    fn command(&self, program: &Path) -> Command {
        let mut command = self.account.command(program);
        command
            .current_dir(&self.folder)
            .env("LC_ALL", "C")
            .env("TZ", "UTC")
            // A Ctrl-C at the terminal is for the tests; the reaper does the rest.
            .process_group(0)
            .stdin(Stdio::null());
        command
    }

    fn forget(&mut self) -> Result<(), ServerError> {
        self.postmaster = None;
        self.reaper.watch(None)
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn log(&self) -> io::Result<File> {
        File::options().create(true).append(true).open(self.log_path())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.reaper.end();
        if let Some(postmaster) = &mut self.postmaster {
            // Ended by the reaper; this is for the case that somebody ended the
            // reaper, and for the process table.
            let _ = postmaster.kill();
            let _ = postmaster.wait();
        }
    }
}

fn unusable(folder: &Path) -> impl FnOnce(io::Error) -> ServerError {
    let folder = folder.to_owned();
    move |source| ServerError::Folder { folder, source }
}

fn bind(port: u16) -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}

/// A port on which nobody listens now. Somebody may by the time it is used,
/// in which case the server ends and has to [evade](Cluster::evade).
fn free_port() -> Result<u16, ServerError> {
    let mut tries = PORT_TRIES;
    loop {
        let port = fastrand::u16(PORTS);
        match bind(port) {
            Ok(_) => return Ok(port),
            Err(error) if tries == 0 => return Err(ServerError::NoPort(error)),
            Err(_) => tries -= 1,
        }
    }
}
