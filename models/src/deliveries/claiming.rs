//! A node's rounds: reads what is due, sweeps, reads what stands before that, claims, and hands
//! out.

use super::settings::{NODES, Settings, Variant};
use super::step::Step;
use super::world::{Copy, Event, Owner, Round, Seen, World};

pub(super) fn steps(settings: &Settings, world: &World, add: &mut impl FnMut(Step, World)) {
    for n in 0..NODES as u8 {
        let mut after = world.clone();
        let sweeps_first = settings.variant == Variant::SweepsFirst;
        match &world.nodes[usize::from(n)].round {
            Round::Idle => {
                let something = |event: &Event| matches!(event, Event::Open | Event::Unswept);
                if world.events.iter().any(something) {
                    begin(&mut after, n, sweeps_first);
                    add(Step::Read(n), after);
                }
            }
            Round::Read(seen) => {
                let due = if sweeps_first { due(world) } else { seen.due };
                if !sweeps_first {
                    sweep(&mut after);
                }
                after.node(n).round = Round::Swept(Seen { due, ..*seen });
                add(Step::Sweep(n), after);
            }
            Round::Swept(seen) => {
                let claims = claims(settings, world, n, *seen);
                after.node(n).round = match claims.is_empty() {
                    true => Round::Idle,
                    false => Round::Claiming(claims),
                };
                add(Step::Look(n), after);
            }
            Round::Claiming(claims) => {
                // The claims are sent together, and arrive in any order.
                let open = claims.iter().enumerate().filter(|(_, (_, answer))| answer.is_none());
                for (at, (copy, _)) in open {
                    let mut after = world.clone();
                    claim(&mut after, n, at, *copy);
                    add(Step::Claim { node: n, event: copy.event }, after);
                }
                if claims.iter().all(|(_, answer)| answer.is_some()) {
                    take(settings, &mut after, n, claims.clone());
                    add(Step::Take(n), after);
                }
            }
        }
    }
}

/// The number of events up to the last one that is due.
fn due(world: &World) -> u8 {
    let last = world.events.iter().rposition(|event| *event == Event::Open);
    last.map_or(0, |last| last as u8 + 1)
}

fn sweep(world: &mut World) {
    let unswept = world.events.iter_mut().filter(|event| **event == Event::Unswept);
    unswept.for_each(|event| *event = Event::Open);
}

fn begin(world: &mut World, n: u8, sweeps_first: bool) {
    if sweeps_first {
        sweep(world);
    }
    let due = due(world);
    let node = world.node(n);
    node.failed_meanwhile = false;
    node.round = Round::Read(Seen { due, held: node.holds() });
}

/// The first deliveries up to the last due one before which the node holds everything.
fn claims(settings: &Settings, world: &World, n: u8, seen: Seen) -> Vec<(Copy, Option<bool>)> {
    let mut claims = Vec::new();
    for event in 0..seen.due {
        let is_held = seen.held & (1 << event) != 0;
        match world.event(event) {
            // It was taken over, and the node does not know yet.
            Event::Open if is_held => break,
            Event::Open => claims.push((Copy { event, fresh: true }, None)),
            Event::Claimed(Owner::Node(of)) if of == n && is_held => {}
            Event::Claimed(_) if settings.variant == Variant::IgnoresObstacles => {}
            Event::Claimed(_) => break,
            // An event that was committed after the sweep is later than each due one.
            Event::Future | Event::Unswept | Event::Handled => {}
        }
    }
    claims
}

fn claim(world: &mut World, n: u8, at: usize, copy: Copy) {
    if copy.fresh {
        world.change(copy.event, Event::Claimed(Owner::Node(n)));
    }
    if let Round::Claiming(claims) = &mut world.node(n).round {
        claims[at] = (copy, Some(copy.fresh));
    }
}

/// Hands out the claims before the first that another node was faster with, and releases the rest.
fn take(settings: &Settings, world: &mut World, n: u8, claims: Vec<(Copy, Option<bool>)>) {
    let node = world.node(n);
    node.round = Round::Idle;
    let is_late = node.failed_meanwhile && settings.variant != Variant::ForgetsFailures;
    node.failed_meanwhile = false;
    let mut broken = false;
    for (copy, claimed) in claims {
        let claimed = claimed == Some(true);
        broken |= !claimed;
        if claimed && (broken || is_late) {
            world.release(copy);
        } else if claimed {
            let node = world.node(n);
            node.held.push(copy);
            node.known = Some(copy.event + 1);
        }
    }
}
