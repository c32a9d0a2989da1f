//! What a key of the configuration is, and the ranges of its values.

use std::ops::RangeInclusive;
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
    /// A whole number within a range that [`check`](super::check) applies, too.
    pub(super) const fn count(range: &RangeInclusive<usize>) -> Self {
        Self::Count { least: *range.start() as u64, most: *range.end() as u64 }
    }

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
/// The age of a row.
pub(super) const AGE: Kind = Kind::Time { bare_milliseconds: false, longest: LONGEST_AGE };
pub(super) const ANY: Kind = Kind::Count { least: 0, most: MOST as u64 };
pub(super) const SOME: Kind = Kind::Count { least: 1, most: MOST as u64 };
pub(super) const BYTES: Kind = Kind::Count { least: 1, most: MOST_BYTES as u64 };

/// A century.
pub(super) const LONGEST_AGE: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// The most of what no other limit bounds.
pub(super) const MOST: usize = u32::MAX as usize;
/// No database accepts more in one value.
pub(super) const MOST_BYTES: usize = 1_000_000_000;
/// How many deliveries a poll may claim. With less, those of one model could be all that it finds.
pub(super) const CLAIMED: RangeInclusive<usize> = 16..=1_000;
/// How many rows a transaction may have.
pub(super) const ROWS: RangeInclusive<usize> = 1..=10_000;
/// How many events a batch of a relay may have.
pub(super) const BATCH: RangeInclusive<usize> = 1..=1_000;
/// How many batches of a relay may be under way.
pub(super) const BATCHES: RangeInclusive<usize> = 1..=64;
/// How many runs of jobs a node may have at a time.
pub(super) const RUNS: RangeInclusive<usize> = 1..=10_000;
