//! The account that runs a server.
//!
//! Invariants: a server runs as the user that runs the tests. The exception is a server that
//! refuses to run as root: under root it runs as the user that its package creates.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::error::ServerError;

/// The account that runs a server.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Account {
    /// The user that runs the tests, which is not root.
    User,
    /// The tests run as root, and so does the server.
    Root,
    /// The tests run as root, and the server as another user.
    Other { user: u32, group: u32 },
}

impl Account {
    /// The account of the tests. `folder` is a folder that this process created.
    pub(crate) fn current(folder: &Path) -> Result<Self, ServerError> {
        // The owner of a new folder is the user that runs this process.
        let owner = fs::metadata(folder).map_err(ServerError::unusable(folder))?.uid();
        Ok(if owner == 0 { Self::Root } else { Self::User })
    }

    /// An account that is not root: that of the tests, or else the user `name`, which becomes
    /// the owner of `folder`.
    pub(crate) fn not_root(folder: &Path, name: &'static str) -> Result<Self, ServerError> {
        if let Self::User = Self::current(folder)? {
            return Ok(Self::User);
        }
        let (user, group) = (id_of("-u", name)?, id_of("-g", name)?);
        chown(folder, Some(user), Some(group)).map_err(ServerError::unusable(folder))?;
        Ok(Self::Other { user, group })
    }

    /// A command that runs under this account.
    pub(super) fn command(self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        if let Self::Other { user, group } = self {
            command.uid(user).gid(group);
        }
        command
    }
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
