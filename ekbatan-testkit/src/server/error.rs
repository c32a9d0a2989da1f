//! The errors of private servers, and what to do about them.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

/// A server could not be started, or a call on it failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The server is not installed in any of the searched folders.
    #[error(
        "no {server} server is installed: none of {searched:?} contains {programs}; \
         install one ({install}), or set {variable} to its folder of programs"
    )]
    NotInstalled {
        /// The kind of server.
        server: &'static str,
        /// The required programs.
        programs: &'static str,
        /// How to install them.
        install: &'static str,
        /// The environment variable that names their folder.
        variable: &'static str,
        /// The searched folders.
        searched: Vec<PathBuf>,
    },

    /// An environment variable names a folder that does not contain the server.
    #[error(
        "{variable} is {folder:?}, which does not contain {programs} of {server}; \
         set it to the folder of a server's programs, such as {example}, or unset it"
    )]
    NoProgramsIn {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        folder: PathBuf,
        /// The kind of server.
        server: &'static str,
        /// The required programs.
        programs: &'static str,
        /// An example of such a folder.
        example: &'static str,
    },

    /// The server refuses to run as root, and the account to run it is missing.
    #[error(
        "the server does not run as root, and there is no user `{0}` to run it instead; \
         create that user (`useradd --system {0}`) or run the tests as another user"
    )]
    NoAccount(&'static str),

    /// A program could not be run.
    #[error("could not run `{program}`: {source}; check that it is installed and executable")]
    Run {
        /// The program.
        program: String,
        /// The error of the operating system.
        source: io::Error,
    },

    /// The server's folder could not be used.
    #[error(
        "could not use the server's folder {folder:?}: {source}; \
         check TMPDIR, its free space and permissions"
    )]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },

    /// There is no free port to listen on.
    #[error("found no free port on 127.0.0.1: {0}; check for servers that were left running")]
    NoPort(#[source] io::Error),

    /// The preparation of the server's data failed.
    #[error("`{program}` failed ({status}) with this output:\n{output}")]
    Preparation {
        /// The program that prepares the data.
        program: String,
        /// Its exit status.
        status: ExitStatus,
        /// Its output.
        output: String,
    },

    /// The server exited instead of accepting connections.
    #[error(
        "the server exited ({status}) instead of accepting connections; the end of its log:\n{log}"
    )]
    Ended {
        /// Its exit status.
        status: ExitStatus,
        /// The last lines of its log.
        log: String,
    },

    /// Another call killed the server or shut it down during its start.
    #[error(
        "another call killed the server or shut it down before it accepted connections; \
         call `restart` after that call has returned"
    )]
    Stopped,

    /// The server runs but accepts no connections.
    #[error(
        "the server accepts no connections {waited:?} after its start; the end of its log:\n{log}"
    )]
    Unresponsive {
        /// The time since its start.
        waited: Duration,
        /// The last lines of its log.
        log: String,
    },

    /// Processes of the server did not end in time.
    #[error(
        "processes {pids:?} of the server still run {waited:?} after the signal to end; \
         check whether the machine is overloaded"
    )]
    Lingering {
        /// Their process ids.
        pids: Vec<u32>,
        /// The time since the signal.
        waited: Duration,
    },

    /// A replica did not pause in time.
    #[error(
        "the replica still replays {waited:?} after `pause_replay`; \
         check whether the machine is overloaded"
    )]
    StillReplaying {
        /// The time since the request.
        waited: Duration,
    },

    /// The server's processes could not be read from `/proc`.
    #[error("could not read the server's processes: {0}; servers need Linux and its /proc")]
    Processes(#[source] io::Error),

    /// The shell that removes the server afterwards has ended before it.
    #[error("the shell that cleans up after the server was ended: {0}; start another server")]
    Unwatched(#[source] io::Error),

    /// The server was not started by this process.
    #[error(
        "the server given by {variable} was not started here, so it cannot be killed or restarted; \
         start a private one with `start`"
    )]
    NotOurs {
        /// The environment variable that names the server.
        variable: &'static str,
    },

    /// The value of an environment variable is not the URL of a server.
    #[error(
        "{variable} is `{url}`, which is not the URL of a server; write `{example}`, or unset it"
    )]
    Url {
        /// The environment variable.
        variable: &'static str,
        /// Its value.
        url: String,
        /// An example of a valid value.
        example: &'static str,
    },

    /// The server did not answer a request, or refused it.
    #[error("the server did not answer the request `{request}`, or refused it: {source}")]
    Request {
        /// The request.
        request: String,
        /// The error of the connection, or the answer of the server.
        source: io::Error,
    },

    /// A statement on the server failed.
    #[error("the server could not be reached, or it rejected a statement: {0}")]
    Database(#[from] sqlx::Error),

    /// The runtime shut down during a call.
    #[error("the runtime shut down before the call on the server had finished: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl ServerError {
    /// For `map_err` after running `program`.
    pub(super) fn running(program: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let program = program.into();
        move |source| Self::Run { program, source }
    }

    /// For `map_err` after a request to a server that runs.
    pub(crate) fn requesting(request: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let request = request.into();
        move |source| Self::Request { request, source }
    }

    /// For `map_err` after using `folder`.
    pub(super) fn unusable(folder: &Path) -> impl FnOnce(io::Error) -> Self {
        let folder = folder.to_owned();
        move |source| Self::Folder { folder, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_their_cause() {
        let full = || io::Error::other("no space left on device");
        let folder = Path::new("/tmp");
        for error in [
            ServerError::running("initdb")(full()),
            ServerError::requesting("put")(full()),
            ServerError::unusable(folder)(full()),
            ServerError::NoPort(full()),
            ServerError::Processes(full()),
            ServerError::Unwatched(full()),
            ServerError::Database(full().into()),
        ] {
            assert!(error.to_string().contains(&full().to_string()), "{error}");
        }
    }
}
