//! The handling of events by two nodes: claim, mark, takeover, sweep, and claims at birth.
//!
//! One model has three versions, each with one event. Two processes and another program commit
//! them, and both processes have a node with one handler, which wants the events in order.
//!
//! ```text
//!                    sweep               claim                  effect and mark
//!   no delivery ───────────────▶ open ───────────▶ claimed ───────────────────────▶ handled
//!        ▲                        ▲ │ ▲               │ ▲
//!        │ another program        │ │ └───────────────┘ │ released: failed, lost, given back
//!        │                 a node │ └───────────────────┘ born claimed
//!   ─────┴────────────────────────┴──  commits the version
//! ```
//!
//! A process may stand still before each step, and its commit may arrive at any later time. What
//! the model leaves out: pauses, parked and blocked deliveries, several handlers, several shards,
//! the generations of subscriptions (an event that lacks deliveries is one that another program
//! wrote), and claims of a round that arrive after their node has joined again.

mod claiming;
mod committing;
mod handling;
mod settings;
mod step;
mod world;

pub use self::settings::{Settings, Variant};
pub use self::step::Step;
pub use self::world::Broken;
use self::world::{Event, World};
use crate::search::{Fairness, Machine};

/// The handling of one model's events.
#[derive(Debug, Clone, Copy)]
pub struct Deliveries(pub Settings);

impl Machine for Deliveries {
    type State = World;
    type Step = Step;
    type Broken = Broken;

    fn start(&self) -> World {
        World::new(&self.0)
    }

    fn steps(&self, world: &World) -> Vec<(Step, World)> {
        let mut steps = Vec::new();
        let mut add = |step, mut after: World| {
            after.normalize();
            if after != *world {
                steps.push((step, after));
            }
        };
        committing::steps(&self.0, world, &mut add);
        claiming::steps(&self.0, world, &mut add);
        handling::steps(&self.0, world, &mut add);
        steps
    }

    fn broken(&self, world: &World) -> Option<Broken> {
        world.broken
    }

    /// Nobody has to commit versions. What was begun goes on, and everything is checked now and
    /// then.
    fn fairness(&self, _: &World, step: Step) -> Fairness {
        match step {
            Step::Crash(_) | Step::Suspect(_) => Fairness::Fault,
            Step::Fail(_) | Step::LoseAnswer(_) | Step::HandleUnheard(_) => Fairness::Fault,
            Step::Commit(_) | Step::Stage(_) | Step::Foreign => Fairness::Choice,
            Step::Rejoin { runs_on: true, .. } => Fairness::Choice,
            _ => Fairness::Weak,
        }
    }

    /// The events that are committed and not handled.
    fn waiting(&self, world: &World) -> u32 {
        let waits = |event: &Event| !matches!(event, Event::Future | Event::Handled);
        let events = world.events.iter().enumerate();
        events.filter(|(_, event)| waits(event)).map(|(n, _)| 1 << n).sum()
    }
}
