//! Why the program did not do what was asked.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::answer::for_people;

/// What went wrong, and whose turn it is.
pub struct Failure {
    message: String,
    status: u8,
    /// What programs get beside the message.
    facts: Map<String, Value>,
}

impl Failure {
    /// It was not asked properly.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 2, facts: Map::new() }
    }

    /// What was asked cannot be done.
    pub fn failed(message: impl Into<String>) -> Self {
        Self { message: message.into(), status: 1, facts: Map::new() }
    }

    /// Adds what programs get beside the message.
    pub fn with(mut self, name: &str, fact: Value) -> Self {
        self.facts.insert(name.to_owned(), fact);
        self
    }

    /// Says what to do if the tables of the framework are not in the event log that is looked at unless
    /// another one is named.
    pub fn naming_the_eventlog(mut self) -> Self {
        if self.message.contains("there is no table `eventlog.") {
            self.message += "; if the application's configuration gives another `eventlog`, name it with --eventlog";
        }
        self
    }

    pub fn status(&self) -> u8 {
        self.status
    }

    pub fn print(mut self, as_json: bool) {
        if as_json {
            self.facts.insert("error".to_owned(), json!(self.message));
            eprintln!("{}", Value::Object(self.facts));
        } else {
            eprintln!("ekbatan: {}", for_people(&self.message));
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
