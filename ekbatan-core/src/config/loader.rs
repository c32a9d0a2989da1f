//! Loading: files, then the environment, then code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};
use serde::Serialize;

use super::error::Findings;
use super::key_path::KeyPath;
use super::keys::ROOT;
use super::layers::{Assignment, Layers};
use super::reader::Reader;
use super::{
    ConfigError, ConfigProblem, ConfigSource, EkbatanConfig, environment, read_config, rules, yaml,
};

/// Loads a configuration from several sources. Files and texts come first, a later one upon
/// an earlier one, then the environment, then what [`set`](Self::set) says.
///
/// ```
/// use ekbatan_core::config::EkbatanConfig;
///
/// let config = EkbatanConfig::loader()
///     .yaml("ekbatan: {configs: {primary-config: {url: 'sqlite:${FOLDER}/wallet.db'}}}")
///     .env_from([("FOLDER", "/var/lib"), ("EKBATAN_CONFIGS_PRIMARY_CONFIG_LANES", "1")])
///     .set("ekbatan.configs.primary-config.maximum-pool-size", 4)
///     .load()?;
/// let primary = config.sharding.groups[0].members[0].primary().unwrap();
/// assert_eq!(primary.url, "sqlite:/var/lib/wallet.db");
/// assert_eq!((primary.lanes, primary.maximum_pool_size), (1, 4));
/// # Ok::<_, ekbatan_core::config::ConfigError>(())
/// ```
#[must_use]
pub struct ConfigLoader {
    texts: Vec<Text>,
    /// None: the process's own, when it is loaded.
    environment: Option<BTreeMap<String, String>>,
    /// Whether variables named `EKBATAN_..` set keys. Others are used by name all the same.
    overrides: bool,
    settings: Vec<(String, Result<Value, String>)>,
}

enum Text {
    File(PathBuf),
    Inline(String),
}

impl ConfigLoader {
    pub(super) fn new() -> Self {
        Self { texts: Vec::new(), environment: None, overrides: true, settings: Vec::new() }
    }

    /// Adds a YAML file.
    pub fn file(mut self, path: impl AsRef<Path>) -> Self {
        self.texts.push(Text::File(path.as_ref().to_owned()));
        self
    }

    /// Adds a YAML text.
    pub fn yaml(mut self, text: impl Into<String>) -> Self {
        self.texts.push(Text::Inline(text.into()));
        self
    }

    /// Whether variables named `EKBATAN_..` set keys; they do by default. `${NAME}` in a file
    /// is replaced either way.
    pub fn environment(mut self, overrides: bool) -> Self {
        self.overrides = overrides;
        self
    }

    /// Takes these variables for the environment, instead of the process's own.
    pub fn env_from<K: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables = variables.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.environment = Some(variables.collect());
        self
    }

    /// Sets a key, whatever files and environment say of it. The path is spelled as in
    /// `ekbatan.sharding.groups[0].members[0].configs.primary-config.password`; the value is
    /// anything that serializes to what a file could have there.
    pub fn set(mut self, path: &str, value: impl Serialize) -> Self {
        let value = Value::serialize(value).map_err(|_| "the value does not serialize".to_owned());
        self.settings.push((path.to_owned(), value));
        self
    }

    /// Loads. Keys that were accepted and have no effect are told in one warning.
    pub fn load(self) -> Result<EkbatanConfig, ConfigError> {
        let config = self.merge()?;
        if !config.ignored.is_empty() {
            tracing::warn!(
                keys = config.ignored.join(", "),
                "the configuration has keys that have no effect"
            );
        }
        Ok(config)
    }

    fn merge(self) -> Result<EkbatanConfig, ConfigError> {
        let mut problems = Vec::new();
        let variables = match self.environment {
            Some(variables) => variables,
            None => environment_of_the_process(&mut problems),
        };
        let mut findings = Findings::default();
        let mut layers = Layers::new();

        for text in self.texts {
            match read(text) {
                Ok((source, top, lines)) => layers.add(source, top, &lines, &mut findings),
                Err(problem) => problems.push(problem),
            }
        }
        // What was not read is not there to be judged.
        if !problems.is_empty() {
            return Err(ConfigError::new(problems));
        }

        let mut assignments = Vec::new();
        let merged = layers.root();
        let ours = variables.iter().filter(|_| self.overrides);
        for (name, value) in ours {
            let source = ConfigSource::Environment(name.clone());
            match environment::path_of(name, merged.as_ref()) {
                None => {}
                Some(Ok(path)) => {
                    let value = Value::from(value.clone());
                    assignments.push(Assignment { path, value, source });
                }
                Some(Err(message)) => problems.push(problem(name, source, message)),
            }
        }
        // By path, so that entries are added to a list in their order.
        assignments.sort_by(|left, right| left.path.cmp(&right.path));
        for pair in assignments.windows(2).filter(|pair| pair[0].path == pair[1].path) {
            let message = format!("sets {}, as {} does; keep one", pair[1].path, pair[0].source);
            problems.push(problem(&pair[1].path.to_string(), pair[1].source.clone(), message));
        }
        for (path, value) in self.settings {
            match environment::dotted(&path).and_then(|path| Ok((path, value?))) {
                Ok((path, value)) => {
                    assignments.push(Assignment { path, value, source: ConfigSource::Code });
                }
                Err(message) => problems.push(problem(&path, ConfigSource::Code, message)),
            }
        }
        for assignment in assignments {
            let (path, source) = (assignment.path.to_string(), assignment.source.clone());
            if let Err(message) = layers.assign(assignment, &mut findings) {
                problems.push(problem(&path, source, message));
            }
        }

        let root = layers.root();
        let config = match &root {
            None => {
                read_config::nothing_at_all(&mut findings);
                None
            }
            Some(root) => {
                let mut reader = Reader {
                    findings: &mut findings,
                    variable: &|name| variables.get(name).cloned(),
                    is_from_file: &|tag| layers.is_from_file(tag),
                };
                let section = reader.section(root, ROOT, &KeyPath::root());
                let (config, form) = read_config::config(section, &mut findings);
                rules::check(&config, form, &mut findings);
                Some(config)
            }
        };
        problems.extend(findings.0.into_iter().map(|finding| {
            let path = layers.as_given(finding.path);
            let (source, line) = layers.locate(&path);
            ConfigProblem {
                path: path.to_string(),
                source,
                line,
                value: finding.value,
                message: finding.message,
            }
        }));
        // As a reader goes through the files; what is in none of them comes last.
        problems.sort_by_cached_key(|problem| {
            let in_file = matches!(problem.source, ConfigSource::File(_) | ConfigSource::Text);
            (!in_file, problem.source.to_string(), problem.line)
        });
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => Err(ConfigError::new(problems)),
        }
    }
}

/// What the process was started with. A variable of ours that is no text is told, others are
/// left out.
fn environment_of_the_process(problems: &mut Vec<ConfigProblem>) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => {
                variables.insert(name, value);
            }
            Err(_) if name.starts_with(environment::PREFIX) => {
                let source = ConfigSource::Environment(name.clone());
                problems.push(problem(&name, source, "is no text in UTF-8".to_owned()));
            }
            Err(_) => {}
        }
    }
    variables
}

fn problem(path: &str, source: ConfigSource, message: String) -> ConfigProblem {
    ConfigProblem { path: path.to_owned(), source, line: None, value: None, message }
}

fn read(text: Text) -> Result<(ConfigSource, Dict, yaml::Lines), ConfigProblem> {
    let (source, text) = match text {
        Text::Inline(text) => (ConfigSource::Text, text),
        Text::File(path) => {
            let bytes = std::fs::read(&path);
            let source = ConfigSource::File(path);
            let bytes = match bytes {
                Ok(bytes) => bytes,
                Err(error) => {
                    return Err(problem("", source, format!("the file cannot be read: {error}")));
                }
            };
            match String::from_utf8(bytes) {
                Ok(text) => (source, text),
                Err(error) => {
                    let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                    let line = good.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
                    return Err(ConfigProblem {
                        line: Some(line),
                        ..problem("", source, "the text is no UTF-8".to_owned())
                    });
                }
            }
        }
    };
    match yaml::parse(&text) {
        Ok((top, lines)) => Ok((source, top, lines)),
        Err(error) => Err(ConfigProblem {
            line: error.line,
            ..problem("", source, format!("the text {}", error.message))
        }),
    }
}
