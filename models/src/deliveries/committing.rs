//! The commits of versions, and the deliveries that are born claimed by them.

use super::settings::{NODES, Settings, Variant};
use super::step::Step;
use super::world::{Copy, Event, Owner, Staged, World};

pub(super) fn steps(settings: &Settings, world: &World, add: &mut impl FnMut(Step, World)) {
    for n in 0..NODES as u8 {
        let mut after = world.clone();
        match (world.nodes[usize::from(n)].staged, world.next()) {
            (None, None) => {}
            (None, Some(event)) if is_born_claimed(settings, world, n, event) => {
                let owner = Owner::Node(n);
                after.node(n).staged = Some(Staged { event, owner, landed: false, fresh: true });
                add(Step::Stage(n), after);
            }
            (None, Some(event)) => {
                after.events[usize::from(event)] = Event::Open;
                add(Step::Commit(n), after);
            }
            (Some(staged), _) if !staged.landed => {
                land(&mut after, staged);
                after.node(n).staged = Some(Staged { landed: true, ..staged });
                add(Step::Land(n), after);
            }
            (Some(staged), _) => {
                if world.failures > 0 {
                    let failures = world.failures - 1;
                    let mut unheard = World { failures, ..world.clone() };
                    unheard.node(n).staged = None;
                    add(Step::LoseAnswer(n), unheard);
                }
                arrive(settings, &mut after, n, staged);
                add(Step::Arrive(n), after);
            }
        }
    }
    if let Some(late) = world.late {
        let mut after = World { late: None, ..world.clone() };
        add(Step::Vanish, after.clone());
        land(&mut after, late);
        add(Step::LandLate, after);
    }
    if world.foreign > 0
        && let Some(event) = world.next()
    {
        let mut after = World { foreign: world.foreign - 1, ..world.clone() };
        after.events[usize::from(event)] = Event::Unswept;
        add(Step::Foreign, after);
    }
}

/// The version of the commit is the next one; [`World::normalize`] drops those of which another
/// commit has the version.
fn land(world: &mut World, staged: Staged) {
    world.events[usize::from(staged.event)] = Event::Claimed(staged.owner);
}

/// A delivery is claimed at its birth if all earlier events are handled, or held by the node.
fn is_born_claimed(settings: &Settings, world: &World, n: u8, event: u8) -> bool {
    let always = settings.variant == Variant::BornClaimedAlways;
    let known = world.nodes[usize::from(n)].known;
    n < settings.births && (always || event == 0 || known == Some(event))
}

/// A node hears that a delivery was born, which it has claimed.
fn arrive(settings: &Settings, world: &mut World, n: u8, staged: Staged) {
    let node = world.node(n);
    node.staged = None;
    let Staged { event, owner, fresh, .. } = staged;
    if owner != Owner::Node(n) {
        return; // others release what an earlier identity has claimed
    }
    let unseen =
        matches!(settings.variant, Variant::TakesBirthsUnseen | Variant::BornClaimedAlways);
    if unseen || event == 0 || node.known == Some(event) {
        node.held.push(Copy { event, fresh });
        node.known = Some(event + 1);
    } else {
        world.release(Copy { event, fresh });
    }
}
