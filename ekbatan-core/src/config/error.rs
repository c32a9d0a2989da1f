//! What is wrong with a configuration: everything at once, each with its place.

use std::fmt;
use std::path::PathBuf;

use super::key_path::KeyPath;

/// A configuration is not usable. It lists every problem that was found, not the first.
///
/// No password is ever part of it.
#[derive(Debug, Clone)]
pub struct ConfigError {
    problems: Vec<ConfigProblem>,
}

/// One thing that is wrong, where, and what is allowed there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigProblem {
    /// The key, as in `ekbatan.sharding.groups[0].name`; empty when a whole file is meant.
    pub path: String,
    /// Where the value comes from, or where it is missed.
    pub source: ConfigSource,
    /// The line of a file or text, if it is known.
    pub line: Option<u64>,
    /// The value as it is written there; never a secret's.
    pub value: Option<String>,
    /// What is wrong, and what is allowed.
    pub message: String,
}

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigSource {
    /// A file.
    File(PathBuf),
    /// A YAML text given in code.
    Text,
    /// A variable of the environment, by its name.
    Environment(String),
    /// Code.
    Code,
}

impl ConfigError {
    pub(super) fn new(problems: Vec<ConfigProblem>) -> Self {
        Self { problems }
    }

    /// Everything that is wrong.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.problems
    }
}

impl std::error::Error for ConfigError {}

/// A line for each problem.
impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.problems.len() {
            1 => write!(f, "the configuration has a problem:")?,
            count => write!(f, "the configuration has {count} problems:")?,
        }
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&*self.path, &self.value) {
            ("", _) => {}
            (path, None) => write!(f, "{path}: ")?,
            (path, Some(value)) => write!(f, "{path} = {value:?}: ")?,
        }
        write!(f, "{} ({}", self.message, self.source)?;
        if let Some(line) = self.line {
            write!(f, ", line {line}")?;
        }
        write!(f, ")")
    }
}

impl fmt::Display for ConfigSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Text => write!(f, "text"),
            Self::Environment(variable) => write!(f, "environment, {variable}"),
            Self::Code => write!(f, "code"),
        }
    }
}

/// A problem whose place is a path yet, and no file and line.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) path: KeyPath,
    pub(super) value: Option<String>,
    pub(super) message: String,
}

/// What was found so far. Of one place the first problem is kept, and none of what stands
/// below it: what only follows is no help.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, path: &KeyPath, message: impl Into<String>) {
        self.push(path, None, message.into());
    }

    pub(super) fn add_value(
        &mut self,
        path: &KeyPath,
        value: impl fmt::Display,
        message: impl Into<String>,
    ) {
        self.push(path, Some(value.to_string()), message.into());
    }

    fn push(&mut self, path: &KeyPath, value: Option<String>, message: String) {
        if !self.has(path) {
            self.0.push(Finding { path: path.clone(), value, message });
        }
    }

    /// Whether something was found at this place, or at one that it stands below.
    pub(super) fn has(&self, path: &KeyPath) -> bool {
        self.0.iter().any(|finding| path.0.starts_with(&finding.path.0))
    }
}
