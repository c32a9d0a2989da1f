//! The path of a value: `ekbatan.sharding.groups[0].name`.

use std::fmt;

use super::shown_address::shown;

/// One step down.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Step {
    Key(String),
    Index(usize),
}

/// The steps from the top. Entries of a list are ordered by their position.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyPath(pub(super) Vec<Step>);

impl KeyPath {
    /// The path of the root key.
    pub(super) fn root() -> Self {
        Self::default().key("ekbatan")
    }

    pub(super) fn key(&self, key: impl Into<String>) -> Self {
        self.with(Step::Key(key.into()))
    }

    pub(super) fn index(&self, index: usize) -> Self {
        self.with(Step::Index(index))
    }

    fn with(&self, step: Step) -> Self {
        let mut steps = self.0.clone();
        steps.push(step);
        Self(steps)
    }

    /// This path, then its parents up to the top.
    pub(super) fn upwards(&self) -> impl Iterator<Item = Self> {
        (0..=self.0.len()).rev().map(|length| Self(self.0[..length].to_vec()))
    }
}

/// An address that was written in place of a key is shown without its password.
impl fmt::Display for KeyPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, step) in self.0.iter().enumerate() {
            match step {
                Step::Key(key) if position == 0 => write!(f, "{}", shown(key))?,
                Step::Key(key) => write!(f, ".{}", shown(key))?,
                Step::Index(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}
