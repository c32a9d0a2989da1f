//! Which dead letters or stored events an operator means.

use std::fmt;

use chrono::{DateTime, SecondsFormat, Utc};

/// Dead letters or stored events of a handler, for
/// [`DeliveryOperations::count`](crate::DeliveryOperations::count),
/// [`replay_all`](crate::DeliveryOperations::replay_all) and
/// [`purge`](crate::DeliveryOperations::purge).
///
/// ```
/// use chrono::{TimeZone, Utc};
/// use ekbatan_events::DeliveryFilter;
///
/// let filter = DeliveryFilter::dead_letters("mail.send")
///     .event_type("WalletOpened")
///     .from(Utc.with_ymd_and_hms(2026, 3, 1, 9, 0, 0).unwrap());
/// assert_eq!(
///     filter.to_string(),
///     "dead letters of `mail.send` with event type `WalletOpened` from 2026-03-01T09:00:00Z"
/// );
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct DeliveryFilter {
    pub(crate) handler: String,
    pub(crate) of: Selected,
    pub(crate) model_type: Option<String>,
    pub(crate) model_id: Option<String>,
    pub(crate) event_type: Option<String>,
    pub(crate) from: Option<DateTime<Utc>>,
    pub(crate) until: Option<DateTime<Utc>>,
}

/// What a filter selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selected {
    DeadLetters,
    SettledLetters,
    StoredEvents,
}

impl DeliveryFilter {
    /// The dead letters of a handler that nobody has settled.
    pub fn dead_letters(handler: impl Into<String>) -> Self {
        Self::new(handler.into(), Selected::DeadLetters)
    }

    /// The dead letters of a handler that were replayed, skipped or dismissed.
    pub fn settled_letters(handler: impl Into<String>) -> Self {
        Self::new(handler.into(), Selected::SettledLetters)
    }

    /// The stored events that a handler wants and that wait for nothing: those that it has
    /// handled, those that it was spared, and those from before it began. Left out are events that
    /// are still to be handled, and those with a dead letter that nobody has settled.
    pub fn stored_events(handler: impl Into<String>) -> Self {
        Self::new(handler.into(), Selected::StoredEvents)
    }

    fn new(handler: String, of: Selected) -> Self {
        Self {
            handler,
            of,
            model_type: None,
            model_id: None,
            event_type: None,
            from: None,
            until: None,
        }
    }

    /// Only events of models with this name.
    #[must_use]
    pub fn model_type(mut self, name: impl Into<String>) -> Self {
        self.model_type = Some(name.into());
        self
    }

    /// Only events of the model with this id.
    #[must_use]
    pub fn model_id(mut self, id: impl ToString) -> Self {
        self.model_id = Some(id.to_string());
        self
    }

    /// Only events with this name.
    #[must_use]
    pub fn event_type(mut self, name: impl Into<String>) -> Self {
        self.event_type = Some(name.into());
        self
    }

    /// Only from this date on: of a dead letter the date at which it was given up, of a stored
    /// event its own.
    #[must_use]
    pub fn from(mut self, date: DateTime<Utc>) -> Self {
        self.from = Some(date);
        self
    }

    /// Only before this date: of a dead letter the date at which it was given up, of a stored
    /// event its own.
    #[must_use]
    pub fn until(mut self, date: DateTime<Utc>) -> Self {
        self.until = Some(date);
        self
    }

    /// Whether it asks for names that only events have.
    pub(crate) fn names_events(&self) -> bool {
        self.event_type.is_some() || self.model_type.is_some()
    }

    /// The handler.
    pub fn handler(&self) -> &str {
        &self.handler
    }
}

impl fmt::Display for DeliveryFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.of {
            Selected::DeadLetters => "dead letters",
            Selected::SettledLetters => "settled dead letters",
            Selected::StoredEvents => "stored events",
        };
        write!(f, "{what} of `{}`", self.handler)?;
        let texts = [
            ("model type", &self.model_type),
            ("model id", &self.model_id),
            ("event type", &self.event_type),
        ];
        let given = texts.into_iter().filter_map(|(name, text)| Some((name, text.as_ref()?)));
        for (at, (name, text)) in given.enumerate() {
            let word = if at == 0 { "with" } else { "and" };
            write!(f, " {word} {name} `{text}`")?;
        }
        for (name, date) in [("from", self.from), ("until", self.until)] {
            if let Some(date) = date {
                write!(f, " {name} {}", date.to_rfc3339_opts(SecondsFormat::AutoSi, true))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_says_in_words_what_it_selects() {
        let date = |seconds| DateTime::from_timestamp(seconds, 0).unwrap_or_default();
        let filter = DeliveryFilter::stored_events("ledger.post");
        assert_eq!(filter.to_string(), "stored events of `ledger.post`");
        let filter = filter.model_type("Wallet").model_id(7).from(date(0)).until(date(60));
        assert_eq!(
            filter.to_string(),
            "stored events of `ledger.post` with model type `Wallet` and model id `7` \
             from 1970-01-01T00:00:00Z until 1970-01-01T00:01:00Z"
        );
    }
}
