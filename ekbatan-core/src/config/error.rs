//! The errors of a configuration: all problems together, each with its place.

use std::fmt;
use std::path::PathBuf;

/// A configuration that cannot be used. Lists every problem, not only the first.
///
/// Never contains a password.
#[derive(Debug, Clone)]
pub struct ConfigError {
    problems: Vec<ConfigProblem>,
}

/// One problem: where it is, what is wrong, and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConfigProblem {
    /// The key, as in `ekbatan.sharding.groups[0].name`; empty if the problem concerns a whole file.
    pub path: String,
    /// The source of the value, or the source in which the value is missing.
    pub source: ConfigSource,
    /// The line of a file or text, if it is known.
    pub line: Option<u64>,
    /// The value as the source has it; never a secret.
    pub value: Option<String>,
    /// What is wrong, and what is allowed.
    pub message: String,
}

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigSource {
    /// A file.
    File(PathBuf),
    /// A YAML text given in code.
    Text,
    /// An environment variable, by its name.
    Environment(String),
    /// Code.
    Code,
}

impl ConfigError {
    pub(super) fn new(problems: Vec<ConfigProblem>) -> Self {
        Self { problems }
    }

    /// All problems.
    pub fn problems(&self) -> &[ConfigProblem] {
        &self.problems
    }
}

impl std::error::Error for ConfigError {}

/// One line for each problem.
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

/// An address that cannot be used. Never contains a password.
#[derive(Debug, Clone)]
pub struct AddressError(pub(super) ConfigError);

impl std::error::Error for AddressError {}

/// One line for each problem.
impl fmt::Display for AddressError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, problem) in self.0.problems.iter().enumerate() {
            if position > 0 {
                writeln!(f)?;
            }
            let (_, key) = problem.path.rsplit_once('.').unwrap_or_default();
            match &problem.value {
                Some(address) if key == "url" => {
                    write!(f, "the address {address:?} {}", problem.message)?;
                }
                None if key == "url" => {
                    write!(f, "the address is blank; write, for example, sqlite:FILE")?;
                }
                _ => write!(f, "the {key} {}", problem.message)?,
            }
        }
        Ok(())
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
