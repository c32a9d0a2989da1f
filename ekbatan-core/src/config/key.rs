//! What a key of the configuration is.

use std::time::Duration;

use super::data_source::LONGEST_TIMEOUT;

/// A key, in kebab-case.
#[derive(Clone, Copy)]
pub(super) struct Key {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) required: bool,
    /// The default, as text for readers.
    pub(super) default: Option<&'static str>,
    pub(super) about: &'static str,
}

/// The kind of a key's value.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// A text that is not blank.
    Text,
    /// An address. Messages show it without its password.
    Address,
    /// A text that messages never show.
    Secret,
    /// A list of texts, or one text with commas between them.
    Texts,
    /// A whole number.
    Count { least: u64, most: u64 },
    /// One of these words.
    Word(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// A duration. In keys that the Java framework has as numbers, a bare number means
    /// milliseconds.
    Time { bare_milliseconds: bool, longest: Duration },
    /// A mapping with these keys.
    Section(&'static [Key]),
    /// A list of mappings with these keys.
    List(&'static [Key]),
    /// A mapping from slots to databases; [`of_slot`](super::keys::of_slot) has the keys of each database.
    Slots,
    /// A key of the Java framework that has no meaning here. Its value is not read; the sentence
    /// says why and what to do.
    Refused(&'static str),
}

impl Key {
    pub(super) const fn new(name: &'static str, kind: Kind, about: &'static str) -> Self {
        Self { name, kind, required: false, default: None, about }
    }

    pub(super) const fn refused(name: &'static str, sentence: &'static str) -> Self {
        Self::new(name, Kind::Refused(sentence), "")
    }

    pub(super) const fn required(mut self) -> Self {
        self.required = true;
        self
    }

    pub(super) const fn or(mut self, default: &'static str) -> Self {
        self.default = Some(default);
        self
    }
}

impl Kind {
    /// The same kind if it contains other keys.
    pub(super) fn container(&self) -> Option<Self> {
        match self {
            Self::Section(keys) => Some(Self::Section(keys)),
            Self::List(keys) => Some(Self::List(keys)),
            Self::Slots => Some(Self::Slots),
            _ => None,
        }
    }
}

/// A time span.
pub(super) const TIME: Kind = Kind::Time { bare_milliseconds: false, longest: LONGEST_TIMEOUT };
pub(super) const MILLISECONDS: Kind =
    Kind::Time { bare_milliseconds: true, longest: LONGEST_TIMEOUT };
/// The age of a row, at most a century.
pub(super) const AGE: Kind =
    Kind::Time { bare_milliseconds: false, longest: Duration::from_secs(100 * 365 * 24 * 60 * 60) };
pub(super) const ANY: Kind = Kind::Count { least: 0, most: u32::MAX as u64 };
pub(super) const SOME: Kind = Kind::Count { least: 1, most: u32::MAX as u64 };
/// No database accepts more in one value.
pub(super) const BYTES: Kind = Kind::Count { least: 1, most: 1_000_000_000 };
