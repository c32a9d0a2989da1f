//! The sources of a configuration in layers; a later layer overrides an earlier one.
//!
//! Figment merges the layers and records the source of every value. Mappings are merged key by
//! key; a list replaces the whole list below it.

use figment::value::{Dict, Map, Tag, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::canonical::Canonical;
use super::tree::{find, place, written_number};
use super::yaml::Lines;
use crate::config::error::ConfigSource;
use crate::config::findings::Findings;
use crate::config::key_path::{KeyPath, Step};
use crate::config::keys::{self, Kind, ROOT};
use crate::config::spelling::same_key;

/// A value for a path, with its source. Assignments override files.
pub(super) struct Assignment {
    pub(super) path: KeyPath,
    pub(super) value: Value,
    pub(super) source: ConfigSource,
}

/// The merged sources.
pub(super) struct Layers {
    figment: Figment,
    /// The source of each layer. The name of figment's metadata is the index.
    sources: Vec<(ConfigSource, Lines)>,
    /// The files and texts that have no root key, and the keys at their top.
    without_root: Vec<(ConfigSource, Vec<String>)>,
}

impl Layers {
    pub(super) fn new() -> Self {
        Self { figment: Figment::new(), sources: Vec::new(), without_root: Vec::new() }
    }

    /// Adds a file above the layers so far.
    pub(super) fn add(
        &mut self,
        source: ConfigSource,
        top: Dict,
        lines: &Lines,
        findings: &mut Findings,
    ) {
        let mut canonical = Canonical { lines, renamed: Lines::new(), findings };
        let (mut merged, mut others) = (None, Vec::new());
        for (key, value) in top {
            if !same_key(&key, "ekbatan") {
                others.push(key); // belongs to the application
                continue;
            }
            let from = KeyPath::default().key(key);
            let value =
                match canonical.value(value, Some(&Kind::Section(ROOT)), &from, &KeyPath::root()) {
                    // The root key has only comments below it.
                    Value::Empty(tag, _) => Value::Dict(tag, Dict::new()),
                    value => value,
                };
            if merged.replace(value).is_some() {
                canonical.findings.add(&KeyPath::root(), "is given twice in one file; keep one");
            }
        }
        let lines = canonical.renamed;
        match merged {
            Some(value) => self.merge(source, lines, value),
            None => self.without_root.push((source, others)),
        }
    }

    /// Adds one value above the layers so far. An index selects an entry of a list; the index after
    /// the last entry adds one.
    pub(super) fn assign(
        &mut self,
        assignment: Assignment,
        findings: &mut Findings,
    ) -> Result<(), String> {
        let Assignment { path, value, source } = assignment;
        let kind = keys::kind_at(&path);
        let mut canonical = Canonical { lines: &Lines::new(), renamed: Lines::new(), findings };
        let value = canonical.value(value, kind.as_ref(), &path, &path);
        let mut root = self.root().unwrap_or_else(|| Value::Dict(Tag::Default, Dict::new()));
        place(&mut root, path.0.get(1..).unwrap_or_default(), value).map_err(|length| {
            format!("the list has {length} entries, so the next index is {length}; leave no gap")
        })?;
        self.merge(source, Lines::new(), root);
        Ok(())
    }

    fn merge(&mut self, source: ConfigSource, lines: Lines, root: Value) {
        let name = self.sources.len();
        self.sources.push((source, lines));
        self.figment = std::mem::take(&mut self.figment).merge(Layer { name, root });
    }

    /// The merged value of the root key.
    pub(super) fn root(&self) -> Option<Value> {
        self.figment.find_value("ekbatan").ok()
    }

    /// The keys at the top of the sources that have no root key.
    pub(super) fn keys_without_root(&self) -> impl Iterator<Item = &str> {
        self.without_root.iter().flat_map(|(_, keys)| keys).map(String::as_str)
    }

    /// Whether a value comes from a file. Only there `${NAME}` is replaced.
    pub(super) fn is_from_file(&self, tag: Tag) -> bool {
        self.source(tag)
            .is_some_and(|(source, _)| matches!(source, ConfigSource::File(_) | ConfigSource::Text))
    }

    fn source(&self, tag: Tag) -> Option<&(ConfigSource, Lines)> {
        let name: usize = self.figment.get_metadata(tag)?.name.parse().ok()?;
        self.sources.get(name)
    }

    /// The path of a url, under the key that the source used: `url` or `jdbc-url`.
    pub(super) fn as_given(&self, path: KeyPath) -> KeyPath {
        let Some((Step::Key(last), above)) = path.0.split_last() else { return path };
        let jdbc = KeyPath(above.to_vec()).key("jdbc-url");
        let root = self.root();
        let given = |path: &KeyPath| {
            root.as_ref()
                .is_some_and(|root| find(root, path.0.get(1..).unwrap_or_default()).is_some())
        };
        if last == "url" && !given(&path) && given(&jdbc) { jdbc } else { path }
    }

    /// A text or number as its source has it. `None` if `${NAME}` is in it, so that messages show what it
    /// stands for.
    pub(super) fn written(&self, path: &KeyPath) -> Option<String> {
        match find(&self.root()?, path.0.get(1..)?)? {
            Value::String(_, text) => Some(text.clone()).filter(|text| !text.contains("${")),
            Value::Num(_, number) => Some(written_number(*number)),
            _ => None,
        }
    }

    /// The source and line of a value. For a missing value, those of its nearest parent.
    pub(super) fn locate(&self, path: &KeyPath) -> (ConfigSource, Option<u64>) {
        let root = self.root();
        for path in path.upwards() {
            let Some(value) = root.as_ref().and_then(|root| find(root, path.0.get(1..)?)) else {
                continue;
            };
            if let Some((source, lines)) = self.source(value.tag()) {
                let line = path.upwards().find_map(|above| lines.get(&above).copied());
                return (source.clone(), line);
            }
        }
        let mut all = self.sources.iter().map(|(source, _)| source);
        let first = all.next().or(self.without_root.first().map(|(source, _)| source));
        (first.cloned().unwrap_or(ConfigSource::Code), None)
    }
}

/// One layer in the form of figment.
struct Layer {
    name: usize,
    root: Value,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.to_string())
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        let top = Dict::from([("ekbatan".to_owned(), self.root.clone())]);
        Ok(Map::from([(Profile::Default, top)]))
    }
}
