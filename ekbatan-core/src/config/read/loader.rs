//! Runs the reading step: files, then the environment, then code.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use figment::value::{Dict, Value};
use serde::Serialize;

use super::interpolation::NotUtf8;
use super::layers::{Assignment, Layers};
use super::reader::Reader;
use super::{build, dotted, environment, yaml};
use crate::config::check;
use crate::config::ekbatan_config::EkbatanConfig;
use crate::config::error::{ConfigError, ConfigProblem, ConfigSource};
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;
use crate::config::keys::ROOT;

/// Loads a configuration from several sources. A later file overrides an earlier one, the
/// environment overrides files, and [`set`](Self::set) overrides everything.
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
/// assert_eq!((primary.lanes, primary.maximum_pool_size), (Some(1), 4));
/// # Ok::<_, ekbatan_core::config::ConfigError>(())
/// ```
#[must_use]
pub struct ConfigLoader {
    texts: Vec<Text>,
    /// `None`: the environment of the process at the time of loading.
    environment: Option<Variables>,
    /// Whether variables named `EKBATAN_..` set keys. `${NAME}` works either way.
    overrides: bool,
    settings: Vec<(String, Result<Value, String>)>,
}

enum Text {
    File(PathBuf),
    Inline(String),
}

/// The variables by name. The value is `None` if it is not a text in UTF-8.
type Variables = BTreeMap<String, Option<String>>;

impl EkbatanConfig {
    /// Loads a YAML file, then the environment variables named `EKBATAN_..`.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, ConfigError> {
        Self::loader().file(path).load()
    }

    /// A loader for several sources; later sources override earlier ones.
    pub fn loader() -> ConfigLoader {
        ConfigLoader { texts: Vec::new(), environment: None, overrides: true, settings: Vec::new() }
    }
}

impl ConfigLoader {
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

    /// Sets whether variables named `EKBATAN_..` set keys. They do by default. `${NAME}` in a
    /// file is replaced either way.
    pub fn environment(mut self, overrides: bool) -> Self {
        self.overrides = overrides;
        self
    }

    /// Uses these variables instead of the environment of the process.
    pub fn env_from<K: Into<String>, V: Into<String>>(
        mut self,
        variables: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let variables =
            variables.into_iter().map(|(name, value)| (name.into(), Some(value.into())));
        self.environment = Some(variables.collect());
        self
    }

    /// Sets a key. This overrides files and the environment. A path is written as in
    /// `ekbatan.sharding.groups[0].members[0].configs.primary-config.password`; the value must
    /// serialize to a value that a file could have there.
    pub fn set(mut self, path: &str, value: impl Serialize) -> Self {
        let value = Value::serialize(value)
            .map_err(|error| format!("the value does not serialize: {error}"));
        self.settings.push((path.to_owned(), value));
        self
    }

    /// Loads the configuration. One warning lists the settings that have no effect.
    pub fn load(self) -> Result<EkbatanConfig, ConfigError> {
        let config = self.read()?;
        if !config.ignored.is_empty() {
            tracing::warn!(
                keys = config.ignored.join(", "),
                "the configuration has keys that have no effect"
            );
        }
        Ok(config)
    }

    fn read(self) -> Result<EkbatanConfig, ConfigError> {
        let mut problems = Vec::new();
        let mut findings = Findings::default();
        let mut layers = Layers::new();
        let variables = match self.environment {
            Some(variables) => variables,
            None => environment_of_the_process(&mut problems),
        };
        for text in self.texts {
            match parse(text) {
                Ok((source, top, lines)) => layers.add(source, top, &lines, &mut findings),
                Err(problem) => problems.push(problem),
            }
        }
        // Without a file that could not be parsed, most other problems would be false.
        if !problems.is_empty() {
            return Err(ConfigError::new(problems));
        }

        let mut assignments = Vec::new();
        if self.overrides {
            assignments = from_environment(&variables, &layers, &mut problems);
        }
        assignments.extend(from_code(self.settings, &mut problems));
        for assignment in assignments {
            let (path, source) = (assignment.path.to_string(), assignment.source.clone());
            if let Err(message) = layers.assign(assignment, &mut findings) {
                problems.push(problem(&path, source, message));
            }
        }

        let config = build_and_check(&layers, &variables, &mut findings);
        problems.extend(locate(findings, &layers));
        match config {
            Some(config) if problems.is_empty() => Ok(config),
            _ => {
                sort(&mut problems);
                Err(ConfigError::new(problems))
            }
        }
    }
}

/// The variables of the process. A variable of ours that is not UTF-8 is a problem; others are a
/// problem where a file uses them.
fn environment_of_the_process(problems: &mut Vec<ConfigProblem>) -> Variables {
    let mut variables = BTreeMap::new();
    for (name, value) in std::env::vars_os() {
        let Ok(name) = name.into_string() else { continue };
        let value = value.into_string().ok();
        if value.is_none() && name.starts_with(environment::PREFIX) {
            let source = ConfigSource::Environment(name.clone());
            problems.push(problem(&name, source, "is not a text in UTF-8".to_owned()));
        }
        variables.insert(name, value);
    }
    variables
}

/// Reads and parses one file or text.
fn parse(text: Text) -> Result<(ConfigSource, Dict, yaml::Lines), ConfigProblem> {
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
                    let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                    let line = valid.iter().filter(|byte| **byte == b'\n').count() as u64 + 1;
                    return Err(ConfigProblem {
                        line: Some(line),
                        ..problem("", source, "the text is not UTF-8".to_owned())
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

/// The assignments of all variables named `EKBATAN_..`.
fn from_environment(
    variables: &Variables,
    layers: &Layers,
    problems: &mut Vec<ConfigProblem>,
) -> Vec<Assignment> {
    let mut assignments = Vec::new();
    let merged = layers.root();
    let texts = variables.iter().filter_map(|(name, value)| Some((name, value.as_ref()?)));
    for (name, value) in texts {
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
    // By path, so that new entries of a list are added in their order.
    assignments.sort_by(|left, right| left.path.cmp(&right.path));
    for pair in assignments.windows(2).filter(|pair| pair[0].path == pair[1].path) {
        let message =
            format!("sets {}, and so does {}; keep one of the two", pair[1].path, pair[0].source);
        problems.push(problem(&pair[1].path.to_string(), pair[1].source.clone(), message));
    }
    assignments
}

/// The assignments of [`ConfigLoader::set`].
fn from_code(
    settings: Vec<(String, Result<Value, String>)>,
    problems: &mut Vec<ConfigProblem>,
) -> Vec<Assignment> {
    let mut assignments = Vec::new();
    for (path, value) in settings {
        match dotted::path_of(&path).and_then(|path| Ok((path, value?))) {
            Ok((path, value)) => {
                assignments.push(Assignment { path, value, source: ConfigSource::Code });
            }
            Err(message) => problems.push(problem(&path, ConfigSource::Code, message)),
        }
    }
    assignments
}

/// The configuration, or `None` if no source has the root key.
fn build_and_check(
    layers: &Layers,
    variables: &Variables,
    findings: &mut Findings,
) -> Option<EkbatanConfig> {
    let Some(root) = layers.root() else {
        build::missing_root(layers.keys_without_root(), findings);
        return None;
    };
    let mut reader = Reader {
        findings,
        variable: &|name| variables.get(name).map(|value| value.clone().ok_or(NotUtf8)).transpose(),
        is_from_file: &|tag| layers.is_from_file(tag),
    };
    let section = reader.section(&root, ROOT, &KeyPath::root());
    let (config, form) = build::config(section, findings);
    check::check(&config, form, findings);
    Some(config)
}

/// Adds the source and line of each finding.
fn locate(findings: Findings, layers: &Layers) -> impl Iterator<Item = ConfigProblem> {
    findings.0.into_iter().map(|finding| {
        let path = layers.as_given(finding.path);
        let (source, line) = layers.locate(&path);
        let written = layers.written(&path).filter(|_| finding.is_time);
        ConfigProblem {
            path: path.to_string(),
            source,
            line,
            value: written.or(finding.value),
            message: finding.message,
        }
    })
}

/// Orders problems by file and line; those of the environment and of code come last.
fn sort(problems: &mut [ConfigProblem]) {
    problems.sort_by_cached_key(|problem| {
        let in_file = matches!(problem.source, ConfigSource::File(_) | ConfigSource::Text);
        (!in_file, problem.source.to_string(), problem.line)
    });
}

fn problem(path: &str, source: ConfigSource, message: String) -> ConfigProblem {
    ConfigProblem { path: path.to_owned(), source, line: None, value: None, message }
}

/// Without the texts and values, which may have passwords.
impl std::fmt::Debug for ConfigLoader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ConfigLoader")
            .field("texts", &self.texts.len())
            .field("settings", &self.settings.len())
            .finish_non_exhaustive()
    }
}
