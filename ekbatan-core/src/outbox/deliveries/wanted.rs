//! What a subscription wants, as it is stored.

/// The model and the name of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventKind<'e> {
    /// The model's name; empty if another program wrote none.
    pub model: &'e str,
    /// The event's name.
    pub name: &'e str,
}

/// What a subscription wants. It is stored in place of an event's name: names in parentheses are
/// those of no event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Wanted {
    /// The events with this name.
    Event(String),
    /// All events of the model with this name.
    Model(String),
    /// All events.
    All,
    /// No events. It says that claims of a lost node are released only after that node has been kept
    /// from sending, which only nodes with the handler can do.
    Fence,
    /// No events. It says since when an operator has retired the handler, also if it has come back.
    Retired,
    /// No events: the handler is an action, which runs the calls that are enqueued. The commits that enqueue
    /// them give them their deliveries.
    Calls,
}

const ALL: &str = "(all events)";
const FENCE: &str = "(fenced)";
const RETIRED: &str = "(retired)";
const CALLS: &str = "(enqueued calls)";
const MODEL: (&str, &str) = ("(events of ", ")");

impl Wanted {
    /// The text that is stored.
    pub fn text(&self) -> String {
        match self {
            Self::Event(name) => name.clone(),
            Self::Model(name) => format!("{}{name}{}", MODEL.0, MODEL.1),
            Self::All => ALL.to_owned(),
            Self::Fence => FENCE.to_owned(),
            Self::Retired => RETIRED.to_owned(),
            Self::Calls => CALLS.to_owned(),
        }
    }

    /// What a stored text means.
    pub fn read(text: &str) -> Self {
        let model = text.strip_prefix(MODEL.0).and_then(|rest| rest.strip_suffix(MODEL.1));
        match (text, model) {
            (ALL, _) => Self::All,
            (FENCE, _) => Self::Fence,
            (RETIRED, _) => Self::Retired,
            (CALLS, _) => Self::Calls,
            (_, Some(model)) => Self::Model(model.to_owned()),
            _ => Self::Event(text.to_owned()),
        }
    }

    /// Whether it wants an event.
    pub fn has(&self, kind: EventKind<'_>) -> bool {
        match self {
            Self::Event(name) => name == kind.name,
            Self::Model(name) => name == kind.model,
            Self::All => true,
            Self::Fence | Self::Retired | Self::Calls => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_again() {
        for wanted in [
            Wanted::Event("WalletOpened".into()),
            Wanted::Model("Wallet".into()),
            Wanted::All,
            Wanted::Fence,
            Wanted::Retired,
            Wanted::Calls,
        ] {
            assert_eq!(Wanted::read(&wanted.text()), wanted);
        }
    }
}
