//! Events that a handler has deliveries of, and that this process does not handle for it: another release has
//! registered more events, or fewer, or has raised the version of an event.
//!
//! Invariants:
//! - A process ends an event without handling it only if the stored subscription says that it is not wanted.
//!   Otherwise it leaves the event to others.
//! - A handler gets no event of a later version than its code knows.

use std::time::Duration;

use ekbatan_core::__private::deliveries::{StoredEvent, Subscriptions};

use crate::handlers::node_handler::Handler;

/// For how long an event that is left waits at least, before any process may claim it.
const SHORTEST: Duration = Duration::from_millis(100);

/// For how long at most. Where no process is left that wants it, many of them must not keep a node busy.
const LONGEST: Duration = Duration::from_secs(600);

/// The process that has left an event passes its stream over for this many times as long, so that others have
/// the time to claim it.
const PASSED_OVER: u32 = 4;

/// By how much longer it passes the stream over at most: others look for events every few seconds.
const LONGER: Duration = Duration::from_secs(60);

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
        if handler.wants(kind) && !handler.has_later_version(event) {
            return Self::Handle;
        }
        let is_first = handler.note_not_handled(&event.event_type);
        let (name, version, event) = (handler.name, event.event_version, &event.event_type);
        if handler.wants(kind) {
            if is_first {
                tracing::warn!(handler = name, event = %event, version, "this process leaves events of a later version to others, whose code knows it; if no process does any more, raise the version in the code and implement `upcast`");
            }
            return Self::Leave;
        }
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

/// For how long an event of this age waits that is left to others. The pause grows with the age, and slowly,
/// because several processes may leave it in turn before one comes that wants it.
pub(crate) fn left_for(age: Duration) -> Duration {
    (age / 4).clamp(SHORTEST, LONGEST)
}

/// For how long a process passes the stream of an event over that it has left for this pause.
pub(crate) fn passed_over_for(pause: Duration) -> Duration {
    (PASSED_OVER * pause).min(pause + LONGER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_leaves_others_the_time_to_claim_an_event_that_it_has_left() {
        for age in [0, 1, 60, 600, 2_400, 86_400] {
            let pause = left_for(Duration::from_secs(age));
            let longer = passed_over_for(pause) - pause;
            assert!(longer >= pause.min(Duration::from_secs(60)), "{age} s: {longer:?}");
        }
    }
}
