//! Holds values against the table of keys and collects everything that does not fit.
//!
//! This takes the place of `Deserialize`, which stops at the first error. What comes out
//! has the right shape, without what was wrong; whoever builds from it goes on with
//! defaults, as nothing that was built is given out while a problem is listed.

use std::collections::BTreeMap;
use std::time::Duration;

use figment::value::{Num, Tag, Value};

use super::address::shown;
use super::duration;
use super::environment::unknown;
use super::error::Findings;
use super::interpolation::interpolate;
use super::key_path::{KeyPath, Step};
use super::keys::{self, Key, Kind};
use super::spelling::{nearest, same_key};

/// A mapping whose keys are known and whose values have their types.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) at: KeyPath,
    values: BTreeMap<&'static str, Typed>,
}

#[derive(Debug)]
enum Typed {
    Text(String),
    Count(u64),
    /// Only its shape: no key that has an effect is a flag yet.
    Flag,
    Word(&'static str),
    Time(Duration),
    Section(Section),
    List(Vec<Section>),
    Slots(BTreeMap<String, Section>),
}

macro_rules! takers {
    ($($name:ident: $variant:ident -> $type:ty;)*) => {$(
        pub(super) fn $name(&mut self, key: &str) -> Option<$type> {
            match self.values.remove(key)? {
                Typed::$variant(value) => Some(value),
                _ => None,
            }
        }
    )*};
}

impl Section {
    takers! {
        text: Text -> String;
        count: Count -> u64;
        word: Word -> &'static str;
        time: Time -> Duration;
        section: Section -> Section;
        list: List -> Vec<Section>;
        slots: Slots -> BTreeMap<String, Section>;
    }

    /// Whether it is the slot of keyed locks.
    pub(super) fn is_of_locks(&self) -> bool {
        self.at.0.last().is_some_and(|step| *step == Step::Key(keys::LOCKS.to_owned()))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// The paths of everything in it that is a value.
    pub(super) fn leaves(&self) -> Vec<String> {
        let mut leaves = Vec::new();
        for (key, value) in &self.values {
            match value {
                Typed::Section(section) => leaves.extend(section.leaves()),
                _ => leaves.push(self.at.key(*key).to_string()),
            }
        }
        leaves
    }
}

/// Reads, and collects what is wrong.
pub(super) struct Reader<'a> {
    pub(super) findings: &'a mut Findings,
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
    pub(super) is_from_file: &'a dyn Fn(Tag) -> bool,
}

impl Reader<'_> {
    pub(super) fn section(&mut self, value: &Value, keys: &'static [Key], at: &KeyPath) -> Section {
        let mut section = Section { at: at.clone(), values: BTreeMap::new() };
        let Some(dict) = value.as_dict() else {
            self.misfit(at, value, "a mapping is needed here");
            return section;
        };
        for (name, value) in dict {
            match keys::find(keys, name) {
                None => self.findings.add(&at.key(name.clone()), unknown(name, keys)),
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
            Kind::Count { least, most } => Typed::Count(self.count(value, *least, *most, at)?),
            Kind::Flag => self.flag(value, at)?,
            Kind::Word(words) => Typed::Word(self.word(value, words, at)?),
            Kind::Time { bare_milliseconds } => {
                Typed::Time(self.time(value, *bare_milliseconds, at)?)
            }
        })
    }

    fn list(&mut self, value: &Value, keys: &'static [Key], at: &KeyPath) -> Option<Vec<Section>> {
        let Some(items) = value.as_array() else {
            self.misfit(at, value, "a list is needed here, each entry behind a `-`");
            return None;
        };
        if items.is_empty() {
            self.findings.add(at, "is empty; at least one entry is needed");
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
            self.misfit(
                at,
                value,
                "a mapping is needed here, with at least the key `primary-config`",
            );
            return None;
        };
        if !dict.contains_key("primary-config") {
            self.findings.add(&at.key("primary-config"), "is missing; a shard needs its database");
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
            self.misfit(at, value, "a text is needed here; put it in quotes");
            return None;
        }
        let text = self.plain(value, at)?;
        if !matches!(kind, Kind::Secret) && text.trim().is_empty() {
            self.findings.add(at, "is blank; say what is meant, or leave the key out");
            return None;
        }
        Some(text)
    }

    /// A text with its names replaced.
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
        let allowed = if most >= u64::from(u32::MAX) {
            format!("a whole number from {least} on is needed")
        } else {
            format!("a whole number from {least} to {most} is needed")
        };
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

    fn flag(&mut self, value: &Value, at: &KeyPath) -> Option<Typed> {
        match value {
            Value::Bool(..) => return Some(Typed::Flag),
            Value::String(..) => {
                let text = self.plain(value, at)?;
                if ["true", "false"].iter().any(|word| text.trim().eq_ignore_ascii_case(word)) {
                    return Some(Typed::Flag);
                }
                self.findings.add_value(at, self.written(value), "`true` or `false` is needed");
            }
            other => self.misfit(at, other, "`true` or `false` is needed"),
        }
        None
    }

    fn word(
        &mut self,
        value: &Value,
        words: &'static [&'static str],
        at: &KeyPath,
    ) -> Option<&'static str> {
        let known = format!("one of {} is needed", words.join(", "));
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

    fn time(&mut self, value: &Value, bare_milliseconds: bool, at: &KeyPath) -> Option<Duration> {
        let text = match value {
            Value::Num(_, number) => written_number(*number),
            Value::String(..) => self.plain(value, at)?,
            other => {
                self.misfit(at, other, &format!("a time span is needed; {}", duration::FORMS));
                return None;
            }
        };
        let text = text.trim();
        let bare = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let span = match bare {
            true if bare_milliseconds => duration::parse(&format!("{text}ms")),
            true => {
                let message = format!("a number needs its unit; {}", duration::FORMS);
                self.findings.add_value(at, self.written(value), message);
                return None;
            }
            false => duration::parse(text),
        };
        if span.is_none() {
            let message = match bare_milliseconds {
                true => format!("is no time span; {}, or as milliseconds", duration::FORMS),
                false => format!("is no time span; {}", duration::FORMS),
            };
            self.findings.add_value(at, self.written(value), message);
        }
        span
    }

    /// A value as its source has it: names in it are not replaced, so nothing of the
    /// environment is shown.
    fn written(&self, value: &Value) -> String {
        match value {
            Value::String(_, text) => shown(text),
            Value::Char(_, letter) => letter.to_string(),
            Value::Bool(_, flag) => flag.to_string(),
            Value::Num(_, number) => written_number(*number),
            other => kind_of(other).to_owned(),
        }
    }

    /// A value of another kind altogether. It may be anything, a password that slipped, too,
    /// so only its kind is told.
    fn misfit(&mut self, at: &KeyPath, value: &Value, needed: &str) {
        match value {
            Value::Empty(..) => {
                self.findings.add(at, format!("has no value; {needed}, or leave the key out"));
            }
            other => self.findings.add(at, format!("is {}; {needed}", kind_of(other))),
        }
    }
}

/// Figment keeps numbers apart by their width and sign.
pub(super) fn whole_number(number: Num) -> Option<i128> {
    number.to_i128().or_else(|| i128::try_from(number.to_u128()?).ok())
}

fn written_number(number: Num) -> String {
    match (whole_number(number), number) {
        (Some(whole), _) => whole.to_string(),
        (None, Num::F32(fraction)) => fraction.to_string(),
        (None, Num::F64(fraction)) => fraction.to_string(),
        (None, _) => "a very large number".to_owned(),
    }
}

pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "a text",
        Value::Bool(..) => "a truth value",
        Value::Num(..) => "a number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a mapping",
        Value::Array(..) => "a list",
    }
}
