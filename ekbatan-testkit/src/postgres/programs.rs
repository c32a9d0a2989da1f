//! Finding the programs of an installed PostgreSQL.
//!
//! Invariants: a folder is used only if it contains both `initdb` and `postgres`, because many
//! distributions put only some of the programs on the search path.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::server::{ProgramSearch, ServerError, usual_places};

const SEARCH: ProgramSearch = ProgramSearch {
    server: "PostgreSQL",
    programs: "`initdb` and `postgres`",
    install: "`scripts/install-servers`, or `apt-get install postgresql` on Debian and Ubuntu",
    variable: "EKBATAN_POSTGRES_BIN",
    example: "/usr/lib/postgresql/17/bin",
    is_complete,
};
/// Debian and its derivatives have one folder per version here.
const VERSIONS: &str = "/usr/lib/postgresql";

/// Finds the folder of programs: the one that the environment names, else that of `pg_config`,
/// else that of the newest version that Debian installed, else one on the search path.
pub(super) fn find() -> Result<PathBuf, ServerError> {
    SEARCH.find(|| {
        let mut places: Vec<PathBuf> = configured().into_iter().collect();
        places.extend(versions_in(Path::new(VERSIONS)));
        places.extend(usual_places());
        places
    })
}

fn is_complete(folder: &Path) -> bool {
    ["initdb", "postgres"].iter().all(|program| folder.join(program).is_file())
}

/// The folder that `pg_config` reports, if it is installed.
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
