//! The scripts: the application's own, from a folder or from code, and the framework's.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::error::MigrationError;
use crate::db::Dialect;

/// The source under which the framework's migrations are recorded.
pub(super) const FRAMEWORK: &str = "ekbatan";
pub(super) const APPLICATION: &str = "application";

#[derive(Debug, Clone)]
pub(super) struct Migration {
    pub(super) version: i64,
    pub(super) name: String,
    /// The text per dialect; `None` stands for every dialect that has no text of its own.
    texts: Vec<(Option<Dialect>, String)>,
}

impl Migration {
    pub(super) fn text(&self, dialect: Dialect) -> Result<&str, MigrationError> {
        self.text_of(Some(dialect)).or_else(|| self.text_of(None)).ok_or_else(|| {
            MigrationError::NoText { version: self.version, name: self.name.clone(), dialect }
        })
    }

    fn text_of(&self, dialect: Option<Dialect>) -> Option<&str> {
        self.texts.iter().find(|(of, _)| *of == dialect).map(|(_, text)| text.as_str())
    }
}

/// The application's migrations.
///
/// A folder holds files named `0001_what_it_does.sql`. Where dialects differ, its subfolders
/// `sqlite`, `postgres`, `mysql` and `mariadb` hold the files.
#[derive(Debug, Clone, Default)]
pub struct Migrations {
    folder: Option<PathBuf>,
    scripts: Vec<Migration>,
}

impl Migrations {
    /// Only the framework's own migrations.
    pub fn none() -> Self {
        Self::default()
    }

    /// The files of a folder.
    pub fn dir(folder: impl Into<PathBuf>) -> Self {
        Self { folder: Some(folder.into()), scripts: Vec::new() }
    }

    /// Adds a script with one text for every dialect.
    #[must_use]
    pub fn script(self, version: i64, name: impl Into<String>, sql: impl Into<String>) -> Self {
        self.add(version, name.into(), None, sql.into())
    }

    /// Adds the text of a script for one dialect.
    #[must_use]
    pub fn script_for(
        self,
        dialect: Dialect,
        version: i64,
        name: impl Into<String>,
        sql: impl Into<String>,
    ) -> Self {
        self.add(version, name.into(), Some(dialect), sql.into())
    }

    /// A second text for the same dialect is a second script of that number, which
    /// [`Migrations::in_order`] rejects.
    fn add(mut self, version: i64, name: String, dialect: Option<Dialect>, sql: String) -> Self {
        let same = self.scripts.iter_mut().find(|script| {
            script.version == version && script.name == name && script.text_of(dialect).is_none()
        });
        match same {
            Some(script) => script.texts.push((dialect, sql)),
            None => self.scripts.push(Migration { version, name, texts: vec![(dialect, sql)] }),
        }
        self
    }

    /// The framework's migrations and then the application's, each with its source, in the order
    /// in which they run.
    pub(super) fn in_order(
        &self,
        dialect: Dialect,
    ) -> Result<Vec<(&'static str, Migration)>, MigrationError> {
        let application = self.application(dialect)?;
        let framework = framework(dialect).into_iter().map(|migration| (FRAMEWORK, migration));
        let application = application.into_iter().map(|migration| (APPLICATION, migration));
        Ok(framework.chain(application).collect())
    }

    fn application(&self, dialect: Dialect) -> Result<Vec<Migration>, MigrationError> {
        let mut all = self.scripts.clone();
        if let Some(folder) = &self.folder {
            let own = folder.join(dialect.name());
            if own.is_dir() {
                read_folder(&own, &mut all)?;
            } else {
                let before = all.len();
                read_folder(folder, &mut all)?;
                if all.len() == before && has_folder_of_scripts(folder) {
                    return Err(MigrationError::NoFolder { folder: own, dialect });
                }
            }
        }
        all.sort_by_key(|script| script.version);
        match all.windows(2).find(|pair| pair[0].version == pair[1].version) {
            Some([first, second]) => Err(MigrationError::Twice {
                version: first.version,
                first: first.name.clone(),
                second: second.name.clone(),
            }),
            _ => Ok(all),
        }
    }
}

/// Whether a folder holds a folder with scripts. One that cannot be read holds none.
fn has_folder_of_scripts(folder: &Path) -> bool {
    let entries = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries(folder).any(|entry| entries(&entry.path()).any(|file| is_script(&file.path())))
}

fn is_script(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sql")
}

fn read_folder(folder: &Path, into: &mut Vec<Migration>) -> Result<(), MigrationError> {
    let unreadable = |source| MigrationError::Folder { folder: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if !is_script(&path) {
            continue;
        }
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let (number, name) =
            stem.split_once('_').ok_or_else(|| MigrationError::Name(path.clone()))?;
        let version = number
            .trim_start_matches(['v', 'V'])
            .parse()
            .map_err(|_| MigrationError::Name(path.clone()))?;
        let bytes = std::fs::read(&path)
            .map_err(|source| MigrationError::File { path: path.clone(), source })?;
        let text = String::from_utf8(bytes).map_err(|error| MigrationError::NotUtf8 {
            path,
            at: error.utf8_error().valid_up_to(),
        })?;
        into.push(Migration { version, name: name.to_owned(), texts: vec![(None, text)] });
    }
    Ok(())
}

/// The framework's migrations for a dialect. New ones are appended; the text of an old one must
/// never change, because its checksum is recorded in databases.
fn framework(dialect: Dialect) -> Vec<Migration> {
    macro_rules! texts {
        ($file:literal: $($folder:literal = $dialect:ident),*) => {
            vec![$((
                Some(Dialect::$dialect),
                include_str!(concat!("framework/", $folder, "/", $file)).to_owned(),
            )),*]
        };
    }
    macro_rules! migration {
        ($version:literal, $name:literal, $file:literal) => {
            Migration {
                version: $version,
                name: $name.to_owned(),
                texts: texts!(
                    $file: "postgres" = Postgres, "sqlite" = Sqlite, "mysql" = MySql, "mariadb" = MariaDb
                ),
            }
        };
        ($version:literal, $name:literal, $file:literal, only $folder:literal = $dialect:ident) => {
            Migration {
                version: $version,
                name: $name.to_owned(),
                texts: texts!($file: $folder = $dialect),
            }
        };
    }
    let all = vec![
        migration!(1, "eventlog", "0001_eventlog.sql"),
        migration!(2, "cross_shard_parts", "0002_cross_shard_parts.sql"),
        migration!(3, "read_under_fence", "0003_read_under_fence.sql", only "postgres" = Postgres),
        migration!(4, "key_homes", "0004_key_homes.sql"),
        migration!(5, "event_retention", "0005_event_retention.sql"),
        migration!(6, "deliveries", "0006_deliveries.sql"),
        migration!(7, "inbox_and_retention", "0007_inbox_and_retention.sql"),
        migration!(8, "interventions", "0008_interventions.sql"),
        migration!(9, "due_by_handler", "0009_due_by_handler.sql"),
        migration!(10, "jobs", "0010_jobs.sql"),
        migration!(11, "enqueued_keys", "0011_enqueued_keys.sql"),
        migration!(12, "old_fences", "0012_old_fences.sql", only "postgres" = Postgres),
        migration!(14, "remote_calls", "0014_remote_calls.sql"),
        migration!(15, "raise_locked_fences", "0015_raise_locked_fences.sql", only "postgres" = Postgres),
        migration!(16, "windows", "0016_windows.sql"),
        migration!(17, "priorities", "0017_priorities.sql"),
    ];
    all.into_iter().filter(|migration| migration.text(dialect).is_ok()).collect()
}

/// What is sent of a text: all but a byte order mark, which editors add and most databases refuse.
pub(super) fn without_mark(text: &str) -> &str {
    text.strip_prefix('\u{feff}').unwrap_or(text)
}

/// The checksum by which a changed text is recognised. It is that of the whole text, also of a byte
/// order mark.
pub(super) fn checksum(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
