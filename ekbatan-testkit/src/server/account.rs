//! The user that runs a server.
//!
//! What always holds: a server belongs to, and runs as, whoever runs the tests,
//! unless that is root and the server refuses to run as root. Then it is the
//! user that the server's package creates.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::ServerError;

/// Whom a server runs as.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Account {
    /// Whoever runs the tests, who is not root.
    Ours,
    /// We are root, and so is the server.
    Root,
    /// Another user, because we are root and the server will not be.
    Other { user: u32, group: u32 },
}

impl Account {
    /// Our own, for a server in `folder`.
    pub(crate) fn ours(folder: &Path) -> Result<Self, ServerError> {
        // A folder that we just made tells who we are.
        let owner = fs::metadata(folder).map_err(unusable(folder))?.uid();
        Ok(if owner == 0 { Self::Root } else { Self::Ours })
    }

    /// An account that is not root, for a server in `folder`: ours, or else that
    /// of the user `name`, to whom the folder is given.
    pub(crate) fn not_root(folder: &Path, name: &'static str) -> Result<Self, ServerError> {
        if let Self::Ours = Self::ours(folder)? {
            return Ok(Self::Ours);
        }
        let (user, group) = (id_of("-u", name)?, id_of("-g", name)?);
        chown(folder, Some(user), Some(group)).map_err(unusable(folder))?;
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

fn unusable(folder: &Path) -> impl FnOnce(io::Error) -> ServerError {
    move |source| ServerError::Folder { folder: folder.to_owned(), source }
}

fn id_of(which: &str, name: &'static str) -> Result<u32, ServerError> {
    let output =
        Command::new("id").args([which, name]).output().map_err(ServerError::running("id"))?;
    if !output.status.success() {
        return Err(ServerError::NoAccount(name));
    }
    String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        .map_err(ServerError::running("id"))
}
