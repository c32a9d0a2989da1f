//! Where the programs of an installed server are.
//!
//! What always holds: a folder is used only if it holds all that the server
//! needs. A folder that was asked for by name is used or reported, never skipped.

use std::env;
use std::path::{Path, PathBuf};

use super::ServerError;

/// Where `scripts/install-servers` puts what the system's packages do not have.
const INSTALLED_HERE: &str = ".servers";

/// What is looked for, and the words to say that it is not there.
#[derive(Debug)]
pub(crate) struct Search {
    /// The kind of server.
    pub(crate) server: &'static str,
    /// What has to be in one folder, in words.
    pub(crate) programs: &'static str,
    /// How to get it.
    pub(crate) install: &'static str,
    /// The environment variable that names the folder.
    pub(crate) variable: &'static str,
    /// What that could be.
    pub(crate) example: &'static str,
    /// Whether a folder holds it.
    pub(crate) is_complete: fn(&Path) -> bool,
}

impl Search {
    /// The folder that the environment variable names, else the first of
    /// `places` that holds the programs.
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

/// Where systems have the programs of servers: the folders on the search path,
/// on which those for daemons are often missing.
pub(crate) fn usual_places() -> Vec<PathBuf> {
    let mut places = vec![PathBuf::from("/usr/sbin"), PathBuf::from("/usr/bin")];
    for folder in env::split_paths(&env::var_os("PATH").unwrap_or_default()) {
        if !places.contains(&folder) {
            places.push(folder);
        }
    }
    places
}

/// Where `scripts/install-servers` has put the server `name`: at the root of the
/// workspace that is being tested, or of the one that we are in.
pub(crate) fn installed_here(name: &str) -> Vec<PathBuf> {
    let tested = env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let mut places: Vec<PathBuf> = Vec::new();
    for start in tested.into_iter().chain(env::current_dir()) {
        for root in start.ancestors().filter(|root| root.join(INSTALLED_HERE).is_dir()) {
            let place = root.join(INSTALLED_HERE).join(name).join("usr/sbin");
            if !places.contains(&place) {
                places.push(place);
            }
        }
    }
    places
}
