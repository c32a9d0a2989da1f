//! Checks every value against the table of keys and collects all problems.
//!
//! This replaces `Deserialize`, which stops at the first error. A section contains only the
//! values that passed. The builder fills the gaps with defaults; the loader returns no
//! configuration while a problem is listed.

use std::collections::BTreeMap;
use std::time::Duration;

use figment::value::{Tag, Value};

use super::duration;
use super::interpolation::{Lookup, interpolate};
use super::section::{Section, Typed};
use super::tree::{kind_of, whole_number, written_number};
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;
use crate::config::keys::{self, Key, Kind};
use crate::config::shown_address::shown;
use crate::config::spelling::{nearest, same_key};

/// Checks values and collects problems.
pub(super) struct Reader<'a> {
    pub(super) findings: &'a mut Findings,
    pub(super) variable: Lookup<'a>,
    pub(super) is_from_file: &'a dyn Fn(Tag) -> bool,
}

impl Reader<'_> {
    pub(super) fn section(&mut self, value: &Value, keys: &'static [Key], at: &KeyPath) -> Section {
        let mut section = Section { at: at.clone(), values: BTreeMap::new() };
        let Some(dict) = value.as_dict() else {
            self.misfit(at, value, "expected a mapping");
            return section;
        };
        for (name, value) in dict {
            match keys::find(keys, name) {
                None => self.findings.add(&at.key(name.clone()), keys::unknown(name, keys)),
                Some(key) => {
                    if let Some(typed) = self.value(value, &key.kind, &at.key(key.name)) {
                        section.values.insert(key.name, typed);
                    }
                }
            }
        }
        for key in keys.iter().filter(|key| key.required && !dict.contains_key(key.name)) {
            self.findings.add(&at.key(key.name), format!("is missing. {}", key.about));
        }
        section
    }

    fn value(&mut self, value: &Value, kind: &Kind, at: &KeyPath) -> Option<Typed> {
        Some(match kind {
            Kind::Section(keys) => Typed::Section(self.section(value, keys, at)),
            Kind::List(keys) => Typed::List(self.list(value, keys, at)?),
            Kind::Slots => Typed::Slots(self.slots(value, at)?),
            Kind::Text | Kind::Address | Kind::Secret => Typed::Text(self.text(value, kind, at)?),
            Kind::Texts => Typed::Texts(self.texts(value, at)?),
            Kind::Count { least, most } => Typed::Count(self.count(value, *least, *most, at)?),
            Kind::Word(words) => Typed::Word(self.word(value, words, at)?),
            Kind::Flag => Typed::Flag(self.flag(value, at)?),
            Kind::Refused(sentence) => {
                self.findings.add(at, *sentence);
                return None;
            }
            Kind::Time { bare_milliseconds, longest } => {
                Typed::Time(self.time(value, *bare_milliseconds, *longest, at)?)
            }
        })
    }

    fn list(&mut self, value: &Value, keys: &'static [Key], at: &KeyPath) -> Option<Vec<Section>> {
        let Some(items) = value.as_array() else {
            self.misfit(at, value, "expected a list, with a `-` before each entry");
            return None;
        };
        if items.is_empty() {
            self.findings.add(at, "is empty; give at least one entry");
        }
        Some(
            items
                .iter()
                .enumerate()
                .map(|(position, item)| self.section(item, keys, &at.index(position)))
                .collect(),
        )
    }

    fn slots(&mut self, value: &Value, at: &KeyPath) -> Option<BTreeMap<String, Section>> {
        let Some(dict) = value.as_dict() else {
            self.misfit(at, value, "expected a mapping with at least the key `primary-config`");
            return None;
        };
        if !dict.contains_key("primary-config") {
            let message = keys::missing_primary(dict.keys().map(String::as_str));
            self.findings.add(&at.key("primary-config"), message);
        }
        Some(
            dict.iter()
                .map(|(slot, value)| {
                    (slot.clone(), self.section(value, keys::of_slot(slot), &at.key(slot.clone())))
                })
                .collect(),
        )
    }

    fn text(&mut self, value: &Value, kind: &Kind, at: &KeyPath) -> Option<String> {
        if !matches!(value, Value::String(..) | Value::Char(..)) {
            self.misfit(at, value, "expected a text; put it in quotes");
            return None;
        }
        let text = self.plain(value, at)?;
        if !matches!(kind, Kind::Secret) && text.trim().is_empty() {
            self.findings.add(at, "is blank; give a value, or remove the key");
            return None;
        }
        Some(text)
    }

    fn texts(&mut self, value: &Value, at: &KeyPath) -> Option<Vec<String>> {
        let texts: Vec<String> = match value {
            Value::Array(_, items) => {
                let items = items.iter().enumerate();
                let texts: Vec<Option<String>> = items
                    .map(|(position, item)| self.text(item, &Kind::Text, &at.index(position)))
                    .collect();
                texts.into_iter().collect::<Option<_>>()?
            }
            Value::String(..) => {
                let text = self.text(value, &Kind::Text, at)?;
                text.split(',').map(|part| part.trim().to_owned()).collect()
            }
            other => {
                self.misfit(at, other, "expected a list of texts, or a text with commas");
                return None;
            }
        };
        if texts.is_empty() || texts.iter().any(String::is_empty) {
            self.findings.add(at, "has an empty entry; give at least one, and none that is blank");
            return None;
        }
        Some(texts)
    }

    /// A text after `${NAME}` was replaced.
    fn plain(&mut self, value: &Value, at: &KeyPath) -> Option<String> {
        let text = match value {
            Value::String(_, text) => text.clone(),
            Value::Char(_, letter) => letter.to_string(),
            _ => return None,
        };
        if !(self.is_from_file)(value.tag()) {
            return Some(text);
        }
        match interpolate(&text, self.variable) {
            Ok(text) => Some(text),
            Err(unresolved) => {
                let messages: Vec<String> = unresolved.iter().map(|u| u.message()).collect();
                self.findings.add(at, messages.join("; "));
                None
            }
        }
    }

    fn count(&mut self, value: &Value, least: u64, most: u64, at: &KeyPath) -> Option<u64> {
        let allowed = format!("expected a whole number from {least} to {most}");
        let number = match value {
            Value::Num(_, number) => whole_number(*number),
            Value::String(..) => self.plain(value, at)?.trim().parse().ok(),
            other => {
                self.misfit(at, other, &allowed);
                return None;
            }
        };
        let fits = |number: &u64| (least..=most).contains(number);
        let count = number.and_then(|number| u64::try_from(number).ok()).filter(fits);
        if count.is_none() {
            self.findings.add_value(at, self.written(value), allowed);
        }
        count
    }

    fn word(
        &mut self,
        value: &Value,
        words: &'static [&'static str],
        at: &KeyPath,
    ) -> Option<&'static str> {
        let known = format!("expected one of {}", words.join(", "));
        if !matches!(value, Value::String(..)) {
            self.misfit(at, value, &known);
            return None;
        }
        let text = self.plain(value, at)?;
        let word = words.iter().copied().find(|word| same_key(word, text.trim()));
        if word.is_none() {
            let message = match nearest(&text, words.iter().copied()) {
                Some(near) => format!("{known}; did you mean `{near}`?"),
                None => known,
            };
            self.findings.add_value(at, self.written(value), message);
        }
        word
    }

    fn flag(&mut self, value: &Value, at: &KeyPath) -> Option<bool> {
        const KNOWN: &str = "expected true or false";
        let text = match value {
            Value::Bool(_, flag) => return Some(*flag),
            Value::String(..) => self.plain(value, at)?,
            other => {
                self.misfit(at, other, KNOWN);
                return None;
            }
        };
        match text.trim() {
            "true" => Some(true),
            "false" => Some(false),
            _ => {
                self.findings.add_value(at, self.written(value), KNOWN);
                None
            }
        }
    }

    fn time(
        &mut self,
        value: &Value,
        bare_milliseconds: bool,
        longest: Duration,
        at: &KeyPath,
    ) -> Option<Duration> {
        let text = match value {
            Value::Num(_, number) => written_number(*number),
            Value::String(..) => self.plain(value, at)?,
            other => {
                self.misfit(at, other, &format!("expected a duration; {}", duration::FORMS));
                return None;
            }
        };
        let text = text.trim();
        let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if bare && !bare_milliseconds {
            let message = format!("the unit is missing; {}", duration::FORMS);
            self.findings.add_value(at, self.written(value), message);
            return None;
        }
        let span = duration::parse(&if bare { format!("{text}ms") } else { text.to_owned() });
        if span.is_none() {
            let number = if bare_milliseconds { ", or as a number of milliseconds" } else { "" };
            let message = format!("is not a duration; {}{number}", duration::FORMS);
            self.findings.add_value(at, self.written(value), message);
        }
        if span.is_some_and(|span| span > longest) {
            let days = longest.as_secs() / 86_400;
            let message = format!("is too long; at most {days}d");
            self.findings.add_value(at, self.written(value), message);
        }
        span
    }

    /// The value as its source has it. `${NAME}` is not replaced, so that messages show nothing of
    /// the environment.
    fn written(&self, value: &Value) -> String {
        match value {
            Value::String(_, text) => shown(text),
            Value::Char(_, letter) => letter.to_string(),
            Value::Bool(_, flag) => flag.to_string(),
            Value::Num(_, number) => written_number(*number),
            other => kind_of(other).to_owned(),
        }
    }

    /// Reports a value of the wrong kind. The value may be a misplaced password, so the message
    /// names only its kind.
    fn misfit(&mut self, at: &KeyPath, value: &Value, needed: &str) {
        match value {
            Value::Empty(..) => {
                self.findings.add(at, format!("has no value; {needed}, or remove the key"));
            }
            other => self.findings.add(at, format!("is {}; {needed}", kind_of(other))),
        }
    }
}
