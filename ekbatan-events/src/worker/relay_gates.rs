//! Which relays of a shard can send at present.
//!
//! Invariants:
//! - A relay is open only under the identity under which it was opened. A new identity closes it.
//! - Nothing is claimed for a relay that is closed, and nothing is sent.
//! - A broker that is away costs no attempts: after a pause, which grows, it is tried to open the relay
//!   again.

use std::collections::HashMap;
use std::time::Duration;

use ekbatan_core::domain::ShardIdentifier;
use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

use crate::failure;
use crate::handlers::handler_set::HandlerSet;
use crate::options::RetryDelay;
use crate::relay::{LONGEST_PAUSE, RelayError, RelaySender};

/// The pause before a relay is opened again.
const PAUSE: RetryDelay = RetryDelay { first: Duration::from_millis(100), longest: LONGEST_PAUSE };

/// The time after which an attempt to open a relay is given up.
const LONGEST_OPENING: Duration = Duration::from_secs(30);

/// The relays of a node on one shard.
pub(crate) struct RelayGates {
    handlers: HandlerSet,
    gates: HashMap<&'static str, Gate>,
    opening: JoinSet<Opened>,
    shard: ShardIdentifier,
    /// The node's identity; `None` while it is not known to be alive.
    node: Option<Uuid>,
}

/// An attempt to open a relay that has ended.
struct Opened {
    sender: RelaySender,
    result: Result<(), RelayError>,
}

#[derive(Debug, Clone, Copy)]
struct Gate {
    state: GateState,
    /// How many attempts have failed since a batch was sent.
    failures: u32,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum GateState {
    Open,
    Opening,
    ClosedUntil(Instant),
}

impl RelayGates {
    pub(crate) fn new(handlers: HandlerSet, shard: ShardIdentifier) -> Self {
        let (gates, opening) = (HashMap::new(), JoinSet::new());
        Self { handlers, gates, opening, shard, node: None }
    }

    /// Closes all relays. They are opened under this identity.
    pub(crate) fn begin_epoch(&mut self, node: Option<Uuid>) {
        self.node = node;
        self.opening.abort_all();
        let gate = Gate { state: GateState::ClosedUntil(Instant::now()), failures: 0 };
        let relays = self.handlers.iter().filter(|handler| handler.relay().is_some());
        self.gates = relays.map(|handler| (handler.name, gate)).collect();
    }

    /// Whether a handler may claim and run. Those that are no relays always may.
    pub(crate) fn is_open(&self, handler: &str) -> bool {
        self.gates.get(handler).is_none_or(|gate| gate.state == GateState::Open)
    }

    /// Takes note of a batch that was sent, or not: then the relay is closed. Returns whether that is
    /// new.
    pub(crate) fn sent(&mut self, relay: &str, is_away: bool) -> bool {
        let Some(gate) = self.gates.get_mut(relay) else { return false };
        let is_open = gate.state == GateState::Open;
        if is_open && is_away {
            gate.fail();
        } else if is_open {
            gate.failures = 0;
        }
        is_open && is_away
    }

    /// Begins to open those whose pause is over. `is_idle` says whether no run of a relay is under way: what
    /// such a run sends belongs to the time before.
    pub(crate) fn begin_opening(&mut self, is_idle: impl Fn(&str) -> bool) {
        let Some(node) = self.node else { return };
        let now = Instant::now();
        for handler in self.handlers.iter() {
            let (Some(relay), Some(gate)) = (handler.relay(), self.gates.get_mut(handler.name))
            else {
                continue;
            };
            let is_due = matches!(gate.state, GateState::ClosedUntil(until) if until <= now);
            if !is_due || handler.is_paused() || !is_idle(handler.name) {
                continue;
            }
            gate.state = GateState::Opening;
            let (relay, sender) = (relay.clone(), RelaySender::new(handler.name, self.shard, node));
            self.opening.spawn(async move {
                let opening = std::panic::AssertUnwindSafe(relay.open(sender)).catch_unwind();
                let result = match tokio::time::timeout(LONGEST_OPENING, opening).await {
                    Ok(Ok(result)) => result,
                    Ok(Err(panic)) => Err(failure::of_panic(&*panic).into()),
                    Err(_) => Err(format!("no answer within {LONGEST_OPENING:?}").into()),
                };
                Opened { sender, result }
            });
        }
    }

    /// When the next pause is over of a relay without a run under way. One that is paused is looked at after
    /// the next round.
    pub(crate) fn next(&self, is_idle: impl Fn(&str) -> bool) -> Option<Instant> {
        let is_paused =
            |relay: &str| self.handlers.get(relay).is_none_or(|handler| handler.is_paused());
        let until = self.gates.iter().filter_map(|(relay, gate)| match gate.state {
            GateState::ClosedUntil(until) if !is_paused(relay) && is_idle(relay) => Some(until),
            _ => None,
        });
        until.min()
    }

    /// Waits for the end of an attempt, or for ever. Returns the relay if it is open now.
    pub(crate) async fn opened(&mut self) -> Option<&'static str> {
        let Opened { sender: RelaySender { relay, shard, node }, result } =
            match self.opening.join_next().await {
                Some(Ok(opened)) => opened,
                Some(Err(_)) => return None,
                None => std::future::pending().await,
            };
        let gate = self.gates.get_mut(relay).filter(|_| self.node == Some(node))?;
        if gate.state != GateState::Opening {
            return None;
        }
        match result {
            Ok(()) => {
                if gate.failures > 0 {
                    tracing::info!(relay, %shard, "the broker of a relay answers again");
                }
                gate.state = GateState::Open;
                Some(relay)
            }
            Err(error) => {
                gate.fail();
                let error = failure::of_error(&*error);
                tracing::warn!(relay, %shard, error, attempts = gate.failures, "the broker of a relay cannot be reached; trying again");
                None
            }
        }
    }
}

impl Gate {
    fn fail(&mut self) {
        self.failures = self.failures.saturating_add(1);
        let pause = PAUSE.after(self.failures, fastrand::f64());
        self.state = GateState::ClosedUntil(Instant::now() + pause);
    }
}
