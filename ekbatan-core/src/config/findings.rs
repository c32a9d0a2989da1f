//! Problems found so far, by key path. The loader adds the file and line of each.

use std::fmt;

use super::key_path::KeyPath;

/// A problem at a key path, before its file and line are known.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) path: KeyPath,
    pub(super) value: Option<String>,
    pub(super) message: String,
}

/// All problems found so far. Only the first problem at a path is kept, and none below it: the
/// others would only follow from it.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, path: &KeyPath, message: impl Into<String>) {
        self.push(path, None, message.into());
    }

    pub(super) fn add_value(
        &mut self,
        path: &KeyPath,
        value: impl fmt::Display,
        message: impl Into<String>,
    ) {
        self.push(path, Some(value.to_string()), message.into());
    }

    fn push(&mut self, path: &KeyPath, value: Option<String>, message: String) {
        if !self.has(path) {
            self.0.push(Finding { path: path.clone(), value, message });
        }
    }

    /// Whether a problem is known at this path or at one of its parents.
    pub(super) fn has(&self, path: &KeyPath) -> bool {
        self.0.iter().any(|finding| path.0.starts_with(&finding.path.0))
    }
}
