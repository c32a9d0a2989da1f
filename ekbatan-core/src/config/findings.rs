//! Problems found so far, by key path. The loader adds the file and line of each.

use std::fmt;
use std::time::Duration;

use super::key_path::KeyPath;

/// A problem at a key path, before its file and line are known.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) path: KeyPath,
    pub(super) value: Option<String>,
    /// Whether the value is a time, which a file may write in another unit.
    pub(super) is_time: bool,
    pub(super) message: String,
}

/// All problems found so far. Only the first problem at a path is kept, and none below it: the
/// others would only follow from it.
#[derive(Debug, Default)]
pub(super) struct Findings(pub(super) Vec<Finding>);

impl Findings {
    pub(super) fn add(&mut self, path: &KeyPath, message: impl Into<String>) {
        self.push(path, None, false, message.into());
    }

    pub(super) fn add_value(
        &mut self,
        path: &KeyPath,
        value: impl fmt::Display,
        message: impl Into<String>,
    ) {
        self.push(path, Some(value.to_string()), false, message.into());
    }

    /// Adds a problem of a time. The loader shows the time as the file has it.
    pub(super) fn add_time(&mut self, path: &KeyPath, time: Duration, message: impl Into<String>) {
        self.push(path, Some(format!("{time:?}")), true, message.into());
    }

    fn push(&mut self, path: &KeyPath, value: Option<String>, is_time: bool, message: String) {
        if !self.has(path) {
            self.0.push(Finding { path: path.clone(), value, is_time, message });
        }
    }

    /// Whether a problem is known at this path or at one of its parents.
    pub(super) fn has(&self, path: &KeyPath) -> bool {
        self.0.iter().any(|finding| path.0.starts_with(&finding.path.0))
    }
}
