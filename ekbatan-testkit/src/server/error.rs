//! What can go wrong with a server, and what to do about it.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

/// Why a server could not be started or did not do as told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server is not installed where it was looked for.
    #[error(
        "no {server} server is installed: no folder with {programs} among {searched:?}; \
         install one ({install}), or name its folder of programs in {variable}"
    )]
    NotInstalled {
        /// The kind of server.
        server: &'static str,
        /// The programs that it needs.
        programs: &'static str,
        /// How to get them.
        install: &'static str,
        /// The environment variable that names their folder.
        variable: &'static str,
        /// The folders that were looked into.
        searched: Vec<PathBuf>,
    },

    /// An environment variable names a folder that does not hold the server.
    #[error(
        "{variable} is {folder:?}, which does not hold {programs} of {server}; \
         name the folder of a server's programs, such as {example}, or unset it"
    )]
    NoProgramsIn {
        /// The environment variable.
        variable: &'static str,
        /// What it names.
        folder: PathBuf,
        /// The kind of server.
        server: &'static str,
        /// The programs that it needs.
        programs: &'static str,
        /// A folder that could hold them.
        example: &'static str,
    },

    /// The server refuses to run as root, and the account to run it is missing.
    #[error(
        "the server does not run as root, and there is no user `{0}` to run it instead; \
         create one (`useradd --system {0}`) or run the tests as another user"
    )]
    NoAccount(&'static str),

    /// A program could not be run.
    #[error("could not run `{program}`; check that it is installed and may be executed")]
    Run {
        /// The program.
        program: String,
        /// What the system said.
        source: io::Error,
    },

    /// The server's folder could not be used.
    #[error(
        "could not use the server's folder {folder:?}; check TMPDIR, its space and permissions"
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },

    /// There is no port to listen on.
    #[error("found no free port on 127.0.0.1; check for servers that were left running")]
    NoPort(#[source] io::Error),

    /// The server's data could not be prepared.
    #[error("`{program}` failed ({status}); it said:\n{output}")]
    Preparation {
        /// The program that was to prepare it.
        program: String,
        /// How it ended.
        status: ExitStatus,
        /// All it printed.
        output: String,
    },

    /// The server ended instead of accepting connections.
    #[error(
        "the server ended ({status}) instead of accepting connections; the end of its log:\n{log}"
    )]
    Ended {
        /// How it ended.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },

    /// The server was killed or shut down while it was being started.
    #[error(
        "the server was killed or shut down before it accepted connections; \
         restart it once whoever did that has finished"
    )]
    Stopped,

    /// The server was started, but accepts no connections.
    #[error(
        "the server accepts no connections {waited:?} after its start; the end of its log:\n{log}"
    )]
    Unresponsive {
        /// How long it was waited for.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },

    /// Processes of the server did not end or stop when they were told to.
    #[error(
        "processes {pids:?} of the server still run {waited:?} after they were told not to; \
         see whether the machine is overloaded, or what else may hold them"
    )]
    Lingering {
        /// Their process ids.
        pids: Vec<u32>,
        /// How long it was waited for.
        waited: Duration,
    },

    /// A replica that was told to pause goes on to repeat what its primary does.
    #[error(
        "the replica still replays {waited:?} after it was told to pause; \
         see whether the machine is overloaded"
    )]
    StillReplaying {
        /// How long it was waited for.
        waited: Duration,
    },

    /// The server's processes could not be looked at.
    #[error("could not follow the server's processes; servers need Linux and its /proc")]
    Processes(#[source] io::Error),

    /// What would clean up after the server has ended before it.
    #[error("the shell that watches over the server was ended by somebody; start another server")]
    Unwatched(#[source] io::Error),

    /// The server belongs to somebody else.
    #[error(
        "the server given by {variable} is not ours to do that with; \
         start a private one with `start`"
    )]
    NotOurs {
        /// The environment variable that names the server.
        variable: &'static str,
    },

    /// An environment variable is no address of a server.
    #[error(
        "{variable} is `{url}`, which is no address of a server; write `{example}`, or unset it"
    )]
    Url {
        /// The environment variable.
        variable: &'static str,
        /// What it says.
        url: String,
        /// What it could say.
        example: &'static str,
    },

    /// The server did not do what it was asked for over a connection.
    #[error("the server could not be reached, or refused what it was asked")]
    Database(#[from] sqlx::Error),

    /// The runtime ended while it worked for the server.
    #[error("the runtime ended before the server had done what it was told")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl ServerError {
    /// For `map_err` after starting `program`.
    pub(super) fn running(program: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let program = program.into();
        move |source| Self::Run { program, source }
    }
}
