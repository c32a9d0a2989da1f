//! A mapping after its values were checked. Each value is taken out once, by its type.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::config::key_path::{KeyPath, Step};
use crate::config::keys;

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

/// A mapping whose keys are known and whose values have the right types.
#[derive(Debug)]
pub(super) struct Section {
    pub(super) at: KeyPath,
    pub(super) values: BTreeMap<&'static str, Typed>,
}

/// A value of the right type.
#[derive(Debug)]
pub(super) enum Typed {
    Text(String),
    Texts(Vec<String>),
    Count(u64),
    Word(&'static str),
    Flag(bool),
    Time(Duration),
    Section(Section),
    List(Vec<Section>),
    Slots(BTreeMap<String, Section>),
}

impl Section {
    takers! {
        text: Text -> String;
        texts: Texts -> Vec<String>;
        count: Count -> u64;
        word: Word -> &'static str;
        flag: Flag -> bool;
        time: Time -> Duration;
        section: Section -> Section;
        list: List -> Vec<Section>;
        slots: Slots -> BTreeMap<String, Section>;
    }

    /// Whether this is the slot of keyed locks.
    pub(super) fn is_of_locks(&self) -> bool {
        self.is_slot(keys::LOCKS)
    }

    /// Whether this is the slot of a database that the framework reads.
    pub(super) fn is_of_data(&self) -> bool {
        self.is_slot("primary-config") || self.is_slot("secondary-config")
    }

    fn is_slot(&self, slot: &str) -> bool {
        self.at.0.last().is_some_and(|step| *step == Step::Key(slot.to_owned()))
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }
}
