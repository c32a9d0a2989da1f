//! Where an installed PostgreSQL keeps its programs.
//!
//! What always holds: a folder is used only if it holds both `initdb` and
//! `postgres`, because many systems put only some of the programs on the search
//! path. A folder that was asked for by name is used or reported, never skipped.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::ServerError;

const CHOSEN: &str = "EKBATAN_POSTGRES_BIN";
/// Where Debian and its relatives keep one folder per version.
const VERSIONS: &str = "/usr/lib/postgresql";

/// The programs of one installed version.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    folder: PathBuf,
}

impl Programs {
    /// Finds the programs: those chosen by `EKBATAN_POSTGRES_BIN`, else those
    /// that `pg_config` speaks of, else the newest that Debian installed, else
    /// what is on the search path.
    pub(super) fn find() -> Result<Self, ServerError> {
        if let Some(folder) = env::var_os(CHOSEN).filter(|name| !name.is_empty()) {
            let folder = PathBuf::from(folder);
            return if is_complete(&folder) {
                Ok(Self { folder })
            } else {
                Err(ServerError::NoProgramsIn(folder))
            };
        }
        let mut searched: Vec<PathBuf> = configured().into_iter().collect();
        searched.extend(versions_in(Path::new(VERSIONS)));
        searched.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
        match searched.iter().find(|folder| is_complete(folder)) {
            Some(folder) => Ok(Self { folder: folder.clone() }),
            None => Err(ServerError::NotInstalled { searched }),
        }
    }

    pub(super) fn initdb(&self) -> PathBuf {
        self.folder.join("initdb")
    }

    pub(super) fn postgres(&self) -> PathBuf {
        self.folder.join("postgres")
    }
}

fn is_complete(folder: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| folder.join(program).is_file())
}

/// What `pg_config` says, if there is one.
fn configured() -> Option<PathBuf> {
    let output = Command::new("pg_config").arg("--bindir").output().ok()?;
    let folder = String::from_utf8(output.stdout).ok()?;
    let folder = folder.trim();
    (output.status.success() && !folder.is_empty()).then(|| PathBuf::from(folder))
}

/// The folders of programs below `folder/<version>`, newest first.
fn versions_in(folder: &Path) -> Vec<PathBuf> {
    let mut found: Vec<(Vec<u32>, PathBuf)> = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.split('.').map(str::parse);
            let version = version.collect::<Result<_, _>>().ok()?;
            Some((version, entry.path().join("bin")))
        })
        .collect();
    found.sort_by(|one, other| other.cmp(one));
    found.into_iter().map(|(_, folder)| folder).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        for version in ["9.6", "15", "9.10", "18", "common"] {
            fs::create_dir(folder.path().join(version)).unwrap();
        }
        let versions = versions_in(folder.path());
        let expected = ["18", "15", "9.10", "9.6"];
        assert_eq!(versions, expected.map(|version| folder.path().join(version).join("bin")));
    }

    #[test]
    fn a_folder_without_initdb_is_incomplete() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("postgres"), "").unwrap();
        assert!(!is_complete(folder.path()));
        fs::write(folder.path().join("initdb"), "").unwrap();
        assert!(is_complete(folder.path()));
    }
}
