//! Brings the keys of one source to one spelling, so that `primaryConfig` in one file and
//! `primary-config` in another are the same key.

use std::collections::BTreeMap;

use figment::value::{Dict, Tag, Value};

use super::yaml::Lines;
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;
use crate::config::keys::{self, Kind};
use crate::config::shown_address::shown;

/// Renames keys, and records their lines under the new names.
pub(super) struct Canonical<'a> {
    /// The lines under the names of the source.
    pub(super) lines: &'a Lines,
    /// The lines under the canonical names.
    pub(super) renamed: Lines,
    pub(super) findings: &'a mut Findings,
}

impl Canonical<'_> {
    pub(super) fn value(
        &mut self,
        value: Value,
        kind: Option<&Kind>,
        from: &KeyPath,
        to: &KeyPath,
    ) -> Value {
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
                (keys::slot_name(name), Some(Kind::Section(keys::of_slot(name))))
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
