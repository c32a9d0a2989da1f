//! Finding the programs of an installed server.
//!
//! Invariants: a folder is used only if it contains all required programs. A folder that
//! an environment variable names is used or reported, never skipped.

use std::env;
use std::path::{Path, PathBuf};

use super::error::ServerError;

/// The folder of `scripts/install-servers`, for servers that the distribution does not
/// package.
const INSTALLED_HERE: &str = ".servers";

/// What to search, and how to report that it is missing.
#[derive(Debug)]
pub(crate) struct ProgramSearch {
    /// The kind of server.
    pub(crate) server: &'static str,
    /// The required programs, in words.
    pub(crate) programs: &'static str,
    /// How to install them.
    pub(crate) install: &'static str,
    /// The environment variable that names their folder.
    pub(crate) variable: &'static str,
    /// An example for that variable.
    pub(crate) example: &'static str,
    /// Whether a folder contains all required programs.
    pub(crate) is_complete: fn(&Path) -> bool,
}

impl ProgramSearch {
    /// The folder that the environment variable names, or else the first of `places` that
    /// contains the programs.
    pub(crate) fn find(
        &self,
        places: impl FnOnce() -> Vec<PathBuf>,
    ) -> Result<PathBuf, ServerError> {
        let Self { server, programs, install, variable, example, is_complete } = *self;
        if let Some(folder) = env::var_os(variable).filter(|name| !name.is_empty()) {
            let folder = PathBuf::from(folder);
            return if is_complete(&folder) {
                Ok(folder)
            } else {
                Err(ServerError::NoProgramsIn { variable, folder, server, programs, example })
            };
        }
        let searched = places();
        match searched.iter().find(|folder| is_complete(folder)) {
            Some(folder) => Ok(folder.clone()),
            None => {
                Err(ServerError::NotInstalled { server, programs, install, variable, searched })
            }
        }
    }
}

/// The folders in which distributions install servers, and the search path, which often
/// lacks them.
pub(crate) fn usual_places() -> Vec<PathBuf> {
    let mut places = vec![PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")];
    for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        if !places.contains(&folder) {
            places.push(folder);
        }
    }
    places
}

/// Where `scripts/install-servers` puts this folder of the server `name`: below the
/// workspace of the tested package, and below the workspace of the current directory.
pub(crate) fn installed_here(name: &str, folder: &str) -> Vec<PathBuf> {
    let tested = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let mut places: Vec<PathBuf> = Vec::new();
    for start in tested.into_iter().chain(env::current_dir()) {
        for root in start.ancestors().filter(|root| root.join(INSTALLED_HERE).is_dir()) {
            let place = root.join(INSTALLED_HERE).join(name).join(folder);
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}
