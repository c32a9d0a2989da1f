//! Events that a handler has deliveries of, and that this process does not want for it: another release has
//! registered more events, or fewer.
//!
//! Invariant: a process ends an event without handling it only if the stored subscription says that it is
//! not wanted. Otherwise it leaves the event to others.

use std::time::Duration;

use ekbatan_core::__private::deliveries::{StoredEvent, Subscriptions};

use crate::handler_set::Handler;

/// For how long an event is left to other processes. Each time, one that wants it may get it first.
const SHORTEST: Duration = Duration::from_millis(100);

/// For how long it is left at most. Where no process is left that wants it, many of them must not keep a
/// node busy.
const LONGEST: Duration = Duration::from_secs(600);

/// What a process does with an event that it has claimed for a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventUse {
    /// It handles it.
    Handle,
    /// It marks the event as handled: the handler does not want it any more.
    End,
    /// It leaves it to other processes, which may be of a later release.
    Leave,
}

impl EventUse {
    /// `subscriptions` are those at this moment, if they are known: another release may have started just
    /// now that wants the event.
    pub(crate) fn of(
        event: &StoredEvent,
        handler: &Handler,
        subscriptions: Option<&Subscriptions>,
    ) -> Self {
        let kind = event.kind();
        if handler.wants(kind) {
            return Self::Handle;
        }
        let is_first = handler.note_unwanted(&event.event_type);
        let (name, event) = (handler.name, &event.event_type);
        if subscriptions.is_some_and(|all| all.is_unwanted(kind, &handler.names())) {
            if is_first {
                tracing::info!(handler = name, event = %event, "the handler does not want these events any more; they are done without it");
            }
            return Self::End;
        }
        if is_first {
            tracing::warn!(handler = name, event = %event, "this process leaves events to others, whose handler wants them; if no process does any more, retire the handler and start its nodes again");
        }
        Self::Leave
    }
}

/// For how long an event of this age is left to others. The pause grows with the age.
pub(crate) fn left_for(age: Duration) -> Duration {
    age.clamp(SHORTEST, LONGEST)
}
