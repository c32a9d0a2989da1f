//! Why the program did not do what was asked.

use std::fmt;

use serde_json::json;

/// What went wrong, and whose turn it is.
pub struct Failure {
    message: String,
    status: u8,
}

impl Failure {
    /// It was not asked properly.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 2 }
    }

    /// What was asked cannot be done.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 1 }
    }

    pub fn status(&self) -> u8 {
        self.status
    }

    pub fn print(&self, as_json: bool) {
        if as_json {
            eprintln!("{}", json!({ "error": self.message }));
        } else {
            eprintln!("ekbatan: {}", self.message);
        }
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::failed(error.to_string())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
