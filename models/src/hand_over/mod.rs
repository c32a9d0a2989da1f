//! The direct hand-over of a lease.
//!
//! A waiter registers in the row of its key. The release of the key makes the first registered
//! waiter the owner, with the next token and a short term, and sends it a message. The waiter
//! starts its work at once and confirms by extending the term. A slow safety net looks for
//! messages that were lost and grants that have expired. Commits are fenced by tokens.
//!
//! ```text
//!            asks, key free                       releases
//!   idle ───────────────────────────▶ holds ──────────────────▶ idle
//!    │                                 ▲  │ its term ends
//!    │ asks, key taken                 │  └─────────────────────▶ idle
//!    ▼                 message         │
//!   waits (registered) ────────────────┘ for the short term, until its extension is there
//!    │  ▲
//!    │  └── looks: registers again if its grant has expired unseen
//!    └─────▶ idle   gives up, or its process dies
//! ```
//!
//! What the model leaves out: clocks that run at different speeds, servers that forget (a crash
//! without durability, a fail-over to a replica that is behind), re-entry, and the queue within a
//! process. Its numbers are small: see [`Settings`].

mod caller;
mod message;
mod row;
mod settings;
mod step;
mod world;

pub use self::settings::{Settings, Variant};
pub use self::step::Step;
pub use self::world::Broken;
use self::world::{Caller, Phase, World};
use crate::search::{Fairness, Machine};

/// The hand-over of one key.
#[derive(Debug, Clone, Copy)]
pub struct HandOver(pub Settings);

impl Machine for HandOver {
    type State = World;
    type Step = Step;
    type Broken = Broken;

    fn start(&self) -> World {
        World::new(self.0.callers)
    }

    fn steps(&self, world: &World) -> Vec<(Step, World)> {
        let mut steps = Vec::new();
        let mut add = |step, mut after: World| {
            after.normalize(&self.0);
            if after != *world {
                steps.push((step, after));
            }
        };
        caller::steps(&self.0, world, &mut add);
        row::steps(&self.0, world, &mut add);
        steps
    }

    fn broken(&self, world: &World) -> Option<Broken> {
        world.broken(&self.0)
    }

    /// Faults end, time passes, servers and networks go on, and nobody works for ever. From some
    /// time on a message is faster than a tick of the clock: a waiter whose messages always take
    /// longer than the confirm term never gets the key.
    fn fairness(&self, world: &World, step: Step) -> Fairness {
        match step {
            Step::Crash(_) | Step::Lose(_) => Fairness::Fault,
            Step::Tick if world.is_quiet() => Fairness::Strong,
            Step::Tick => Fairness::Fault,
            Step::Start(_) | Step::GiveUp(_) | Step::Extend(_) | Step::Inspect => Fairness::Choice,
            Step::Begin(_) | Step::Commit(_) => Fairness::Choice,
            _ => Fairness::Weak,
        }
    }

    fn waiting(&self, world: &World) -> u32 {
        let waits = |(n, caller): (usize, &Caller)| match caller.phase {
            Phase::Waiting => 1 << n,
            _ => 0,
        };
        world.callers.iter().enumerate().map(waits).sum()
    }
}
