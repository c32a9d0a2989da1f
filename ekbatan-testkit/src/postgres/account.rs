//! The user that runs a server.
//!
//! PostgreSQL refuses to run as root. What always holds: when the tests do run
//! as root, everything of the server belongs to, and runs as, the user that the
//! PostgreSQL package creates; otherwise as whoever runs the tests.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::ServerError;

/// The user that the PostgreSQL package creates.
const NAME: &str = "postgres";

/// Whom a server runs as.
#[derive(Debug, Clone, Copy)]
pub(super) enum Account {
    /// Whoever runs the tests.
    Ours,
    /// Another user, because we are root.
    Other { user: u32, group: u32 },
}

impl Account {
    /// The account for a server in `folder`, to which the folder is given.
    pub(super) fn take_over(folder: &Path) -> Result<Self, ServerError> {
        let unusable = |source| ServerError::Folder { folder: folder.to_owned(), source };
        // A folder that we just made tells who we are.
        if fs::metadata(folder).map_err(unusable)?.uid() != 0 {
            return Ok(Self::Ours);
        }
        let (user, group) = (id_of("-u")?, id_of("-g")?);
        chown(folder, Some(user), Some(group)).map_err(unusable)?;
        Ok(Self::Other { user, group })
    }

    /// A command that runs as this account.
    pub(super) fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Self::Other { user, group } = self {
            command.uid(user).gid(group);
        }
        command
    }
}

fn id_of(which: &str) -> Result<u32, ServerError> {
    let output =
        Command::new("id").args([which, NAME]).output().map_err(ServerError::running("id"))?;
    if !output.status.success() {
        return Err(ServerError::NoAccount);
    }
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        .map_err(ServerError::running("id"))
}
