//! Subjects to which the server does not let the user send.
//!
//! The server says so in a message of its own. To the message that was sent it answers nothing.

use std::collections::HashMap;

use async_nats::{Event, ServerError};
use tokio::sync::watch;

/// How many messages are denied at most on one connection.
const MOST: u64 = 10_000;

/// How often the server has denied each subject, on one connection.
#[derive(Default)]
pub(crate) struct Denials(watch::Sender<HashMap<String, u64>>);

impl Denials {
    /// Takes note of what the server says.
    pub(crate) fn note(&self, event: &Event) {
        let Event::ServerError(ServerError::Other(error)) = event else { return };
        let Some(subject) = denied_subject(error) else { return };
        self.0.send_modify(|denials| *denials.entry(subject.to_owned()).or_default() += 1);
    }

    /// How often a subject was denied. Called before a message is sent.
    pub(crate) fn of(&self, subject: &str) -> u64 {
        count(&self.0.borrow(), subject)
    }

    /// Whether the connection is to be replaced: the client keeps each message that has no answer.
    pub(crate) fn are_many(&self) -> bool {
        self.0.borrow().values().sum::<u64>() > MOST
    }

    /// Waits until a subject is denied again, or for ever.
    pub(crate) async fn more_than(&self, before: u64, subject: &str) {
        // The sender is here.
        let _ = self.0.subscribe().wait_for(|denials| count(denials, subject) > before).await;
    }
}

fn count(denials: &HashMap<String, u64>, subject: &str) -> u64 {
    denials.get(subject).copied().unwrap_or_default()
}

fn denied_subject(error: &str) -> Option<&str> {
    error.strip_prefix("Permissions Violation for Publish to \"")?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_denied_subject_is_read_from_what_the_server_says() {
        let said = "Permissions Violation for Publish to \"wallets.Opened\"";
        assert_eq!(denied_subject(said), Some("wallets.Opened"));
        assert_eq!(denied_subject("Permissions Violation for Subscription to \"a\""), None);
    }
}
