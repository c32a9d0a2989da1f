//! A defect as its file describes it, and whether it still fits the sources.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// One way to break the code.
#[derive(Debug)]
pub struct Defect {
    /// The path of its file below `tests/museum`, without `.toml`.
    pub name: String,
    /// What goes wrong for a user of such code.
    pub breaks: String,
    /// The edits that bring it back.
    pub edits: Vec<Edit>,
    /// The suite of the test: a folder of `tests`, `cli`, or `lib:` and the name of a crate. The suite of a
    /// store or of a broker, which needs its feature and its server, is `locks with mongodb` or `relay with kafka`.
    pub suite: String,
    /// Selects the tests; at least one of them fails, see [`Defect::is_caught_by`].
    pub test: String,
}

/// A text that is replaced in a file of the repository.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edit {
    /// The file, from the root of the repository.
    pub file: PathBuf,
    /// A text that occurs once in it.
    pub find: String,
    /// What stands there instead.
    pub replace: String,
}

/// Why a file describes no defect.
#[derive(Debug)]
pub struct Error(String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

/// The file as it is written: one edit at the top, or several in `[[edit]]` tables.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    breaks: String,
    file: Option<PathBuf>,
    find: Option<String>,
    replace: Option<String>,
    #[serde(default)]
    edit: Vec<Edit>,
    suite: String,
    test: String,
}

/// What stands between a suite and the feature that it needs.
pub const WITH: &str = " with ";

impl Defect {
    /// Every defect of a repository, sorted by name.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is no defect; the message names it.
    pub fn all(repository: &Path) -> Result<Vec<Self>, Error> {
        let museum = repository.join("tests/museum");
        let mut files = Vec::new();
        files_below(&museum, "toml", &mut files).map_err(|error| unreadable(&museum, &error))?;
        let mut defects = Vec::new();
        for file in files {
            if file.ends_with("Cargo.toml") {
                continue;
            }
            let text = fs::read_to_string(&file).map_err(|error| unreadable(&file, &error))?;
            let name = file.strip_prefix(&museum).unwrap_or(&file).with_extension("");
            defects.push(Self::parse(&name.display().to_string(), &text)?);
        }
        defects.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(defects)
    }

    /// The defect that a text describes.
    ///
    /// # Errors
    ///
    /// If a key is missing, unknown, or of another type.
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let mistake = |what: String| Error(format!("tests/museum/{name}.toml: {what}"));
        let written: Written = toml::from_str(text).map_err(|error| mistake(error.to_string()))?;
        let mut edits = written.edit;
        match (written.file, written.find, written.replace) {
            (Some(file), Some(find), Some(replace)) => edits.push(Edit { file, find, replace }),
            (None, None, None) => {}
            _ => return Err(mistake("`file`, `find` and `replace` belong together".into())),
        }
        if edits.is_empty() {
            return Err(mistake("it edits nothing".into()));
        }
        let Written { breaks, suite, test, .. } = written;
        Ok(Self { name: name.to_owned(), breaks, edits, suite, test })
    }

    /// Whether a test is selected: its path contains every part of `test` between `::`. Modules
    /// that are of no matter, such as the one of the database, can thus be left out.
    pub fn is_caught_by(&self, path: &str) -> bool {
        self.test.split("::").all(|part| path.contains(part))
    }

    /// Why the defect does not fit the sources of a repository; empty if it does.
    pub fn mistakes(&self, repository: &Path) -> Vec<String> {
        let mut found: Vec<String> =
            self.edits.iter().filter_map(|edit| edit.mistake(repository)).collect();
        if self.breaks.trim().is_empty() {
            found.push("`breaks` says nothing".into());
        }
        let sources = self.test_sources(repository);
        // The name of the function: modules can be those of a macro.
        let parts = self.test.split("::");
        let function = parts.max_by_key(|part| part.len()).unwrap_or_default();
        if function.is_empty() {
            found.push("`test` names no test".into());
        } else if !sources.is_dir() {
            found.push(format!("there is no suite `{}`", self.suite));
        } else if !mentions(&sources, function) {
            found.push(format!("no test of the suite `{}` is called `{function}`", self.suite));
        }
        found
    }

    /// The folder with the sources of the test.
    fn test_sources(&self, repository: &Path) -> PathBuf {
        match self.suite.strip_prefix("lib:") {
            Some("ekbatan") => repository.join("src"),
            Some(package) => repository.join(package).join("src"),
            None if self.suite == "cli" => repository.join("ekbatan-cli/tests/cli"),
            None => repository.join("tests").join(self.folder()),
        }
    }

    /// The folder of the suite.
    fn folder(&self) -> &str {
        self.suite.split(WITH).next().unwrap_or_default()
    }

    /// The feature that the suite needs, beside those of `scripts/test`.
    pub fn feature(&self) -> Option<&str> {
        self.suite.split_once(WITH).map(|(_, feature)| feature)
    }
}

impl Edit {
    fn mistake(&self, repository: &Path) -> Option<String> {
        let file = self.file.display();
        let text = match fs::read_to_string(repository.join(&self.file)) {
            Ok(text) => text,
            Err(error) => return Some(format!("{file} cannot be read: {error}")),
        };
        if self.find == self.replace {
            return Some(format!("the edit of {file} changes nothing"));
        }
        match text.matches(&self.find).count() {
            1 => None,
            count => Some(format!("{file} has the text to replace {count} times, not once")),
        }
    }

    /// Replaces the text in the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read or written.
    pub fn apply(&self, repository: &Path) -> io::Result<()> {
        let file = repository.join(&self.file);
        let text = fs::read_to_string(&file)?;
        fs::write(&file, text.replacen(&self.find, &self.replace, 1))
    }
}

/// Whether a source below the folder has this text.
fn mentions(folder: &Path, text: &str) -> bool {
    let mut files = Vec::new();
    files_below(folder, "rs", &mut files).is_ok()
        && files.iter().any(|file| fs::read_to_string(file).is_ok_and(|it| it.contains(text)))
}

fn files_below(folder: &Path, extension: &str, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            files_below(&path, extension, found)?;
        } else if path.extension().is_some_and(|it| it == extension) {
            found.push(path);
        }
    }
    Ok(())
}

fn unreadable(path: &Path, error: &io::Error) -> Error {
    Error(format!("{} cannot be read: {error}", path.display()))
}
