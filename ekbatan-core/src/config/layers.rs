//! The sources of a configuration, one upon the other.
//!
//! Figment merges them and remembers which value came from which; mappings are merged key
//! by key, and a list in a later file takes the place of the whole list before it. Before a
//! source is merged its keys are brought to one spelling, so that `primaryConfig` in one
//! file meets `primary-config` in another.

use std::collections::BTreeMap;

use figment::value::{Dict, Map, Tag, Value};
use figment::{Figment, Metadata, Profile, Provider};

use super::ConfigSource;
use super::address::shown;
use super::error::Findings;
use super::key_path::{KeyPath, Step};
use super::keys::{self, Kind, ROOT, SLOTS};
use super::spelling::{kebab, same_key};
use super::yaml::Lines;

/// What is put above the files: a value for a path, and who says so.
pub(super) struct Assignment {
    pub(super) path: KeyPath,
    pub(super) value: Value,
    pub(super) source: ConfigSource,
}

/// The merged sources.
pub(super) struct Layers {
    figment: Figment,
    /// By the number that figment's metadata is named with.
    sources: Vec<(ConfigSource, Lines)>,
}

impl Layers {
    pub(super) fn new() -> Self {
        Self { figment: Figment::new(), sources: Vec::new() }
    }

    /// Puts a file's values upon what there is.
    pub(super) fn add(
        &mut self,
        source: ConfigSource,
        top: Dict,
        lines: &Lines,
        findings: &mut Findings,
    ) {
        let mut canonical = Canonical { lines, renamed: Lines::new(), findings };
        let mut merged = None;
        for (key, value) in top {
            if !same_key(&key, "ekbatan") {
                continue; // the application's own
            }
            let from = KeyPath::default().key(key);
            let value =
                match canonical.value(value, Some(&Kind::Section(ROOT)), &from, &KeyPath::root()) {
                    // Nothing but comments below the root key.
                    Value::Empty(tag, _) => Value::Dict(tag, Dict::new()),
                    value => value,
                };
            if merged.replace(value).is_some() {
                canonical.findings.add(&KeyPath::root(), "is given twice in one file; keep one");
            }
        }
        let lines = canonical.renamed;
        if let Some(value) = merged {
            self.merge(source, lines, value);
        }
    }

    /// Puts single values upon what there is. In a list they count by position; the next
    /// after the last adds an entry.
    pub(super) fn assign(
        &mut self,
        assignment: Assignment,
        findings: &mut Findings,
    ) -> Result<(), String> {
        let Assignment { path, value, source } = assignment;
        let kind = kind_at(&path);
        let mut canonical = Canonical { lines: &Lines::new(), renamed: Lines::new(), findings };
        let value = canonical.value(value, kind.as_ref(), &path, &path);
        let mut root = self.root().unwrap_or_else(|| Value::Dict(Tag::Default, Dict::new()));
        place(&mut root, path.0.get(1..).unwrap_or_default(), value).map_err(|length| {
            format!(
                "the list has {length} entries, and the next one is number {length}; leave no gap"
            )
        })?;
        self.merge(source, Lines::new(), root);
        Ok(())
    }

    fn merge(&mut self, source: ConfigSource, lines: Lines, root: Value) {
        let name = self.sources.len();
        self.sources.push((source, lines));
        self.figment = std::mem::take(&mut self.figment).merge(Layer { name, root });
    }

    /// What stands below the root key.
    pub(super) fn root(&self) -> Option<Value> {
        self.figment.find_value("ekbatan").ok()
    }

    /// Whether a value comes from a file, so that names in it are replaced.
    pub(super) fn is_from_file(&self, tag: Tag) -> bool {
        self.source(tag)
            .is_some_and(|(source, _)| matches!(source, ConfigSource::File(_) | ConfigSource::Text))
    }

    fn source(&self, tag: Tag) -> Option<&(ConfigSource, Lines)> {
        let name: usize = self.figment.get_metadata(tag)?.name.parse().ok()?;
        self.sources.get(name)
    }

    /// The path of a url under the key that the url was given by.
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

    /// Where a path's value comes from, or, where there is none, that of what it is missed
    /// in.
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
        let first = self.sources.first();
        first.map_or((ConfigSource::Code, None), |(source, _)| (source.clone(), None))
    }
}

/// One source, as figment takes it.
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

/// The value at the end of these steps.
pub(super) fn find<'a>(root: &'a Value, steps: &[Step]) -> Option<&'a Value> {
    steps.iter().try_fold(root, |value, step| match (value, step) {
        (Value::Dict(_, dict), Step::Key(key)) => dict.get(key),
        (Value::Array(_, items), Step::Index(index)) => items.get(*index),
        _ => None,
    })
}

/// Puts a value at the end of these steps, or tells how long the list is that has no such
/// place.
fn place(root: &mut Value, steps: &[Step], value: Value) -> Result<(), usize> {
    let Some((step, rest)) = steps.split_first() else {
        *root = value;
        return Ok(());
    };
    match step {
        Step::Key(key) => {
            if !matches!(root, Value::Dict(..)) {
                *root = Value::Dict(Tag::Default, Dict::new());
            }
            let Value::Dict(_, dict) = root else { return Ok(()) };
            // Made only once it is known that the rest has a place.
            let mut inner = dict.get(key).cloned().unwrap_or_else(|| Value::from(Dict::new()));
            place(&mut inner, rest, value)?;
            dict.insert(key.clone(), inner);
        }
        Step::Index(index) => {
            let mut items = match &*root {
                Value::Array(_, items) => items.clone(),
                _ => Vec::new(),
            };
            if *index > items.len() {
                return Err(items.len());
            }
            let mut inner = items.get(*index).cloned().unwrap_or_else(|| Value::from(Dict::new()));
            place(&mut inner, rest, value)?;
            if *index < items.len() {
                items[*index] = inner;
            } else {
                items.push(inner);
            }
            let tag = if let Value::Array(tag, _) = root { *tag } else { Tag::Default };
            *root = Value::Array(tag, items);
        }
    }
    Ok(())
}

/// The name of a slot in our spelling.
pub(super) fn slot(name: &str) -> String {
    let known = SLOTS.iter().find(|(slot, _)| same_key(slot, name));
    known.map_or_else(|| kebab(name), |(slot, _)| (*slot).to_owned())
}

/// What may stand at a path whose keys are in our spelling.
fn kind_at(path: &KeyPath) -> Option<Kind> {
    path.0.iter().skip(1).try_fold(Kind::Section(ROOT), |kind, step| match (kind, step) {
        (Kind::Section(keys), Step::Key(name)) => keys::find(keys, name)?.kind.container(),
        (Kind::Slots, Step::Key(name)) => Some(Kind::Section(keys::of_slot(name))),
        (Kind::List(keys), Step::Index(_)) => Some(Kind::Section(keys)),
        _ => None,
    })
}

/// Brings keys to one spelling, and remembers their lines under it.
struct Canonical<'a> {
    lines: &'a Lines,
    renamed: Lines,
    findings: &'a mut Findings,
}

impl Canonical<'_> {
    fn value(&mut self, value: Value, kind: Option<&Kind>, from: &KeyPath, to: &KeyPath) -> Value {
        if let Some(line) = self.lines.get(from) {
            self.renamed.insert(to.clone(), *line);
        }
        match (value, kind) {
            (Value::Dict(tag, dict), Some(Kind::Section(keys))) => {
                self.dict(tag, dict, from, to, |name| match keys::find(keys, name) {
                    Some(key) => (key.name.to_owned(), key.kind.container()),
                    None => (name.to_owned(), None),
                })
            }
            (Value::Dict(tag, dict), Some(Kind::Slots)) => self.dict(tag, dict, from, to, |name| {
                (slot(name), Some(Kind::Section(keys::of_slot(name))))
            }),
            (Value::Array(tag, items), Some(Kind::List(keys))) => {
                let items = items.into_iter().enumerate().map(|(position, item)| {
                    let kind = Kind::Section(keys);
                    self.value(item, Some(&kind), &from.index(position), &to.index(position))
                });
                Value::Array(tag, items.collect())
            }
            (value, _) => value,
        }
    }

    fn dict(
        &mut self,
        tag: Tag,
        dict: Dict,
        from: &KeyPath,
        to: &KeyPath,
        rename: impl Fn(&str) -> (String, Option<Kind>),
    ) -> Value {
        let mut renamed = Dict::new();
        let mut spellings: BTreeMap<String, String> = BTreeMap::new();
        for (name, value) in dict {
            let (key, kind) = rename(&name);
            let to = to.key(key.clone());
            let value = self.value(value, kind.as_ref(), &from.key(name.clone()), &to);
            if let Some(first) = spellings.insert(key.clone(), name.clone()) {
                let message = format!(
                    "is given twice, as `{}` and as `{}`; keep one",
                    shown(&first),
                    shown(&name)
                );
                self.findings.add(&to, message);
            }
            renamed.insert(key, value);
        }
        Value::Dict(tag, renamed)
    }
}
