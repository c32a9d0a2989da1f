//! Handlers, their commits, and what becomes of nodes.

use super::settings::{EVENTS, NODES, Settings, Variant};
use super::step::Step;
use super::world::{Copy, Event, Node, Owner, Round, Staged, World};

pub(super) fn steps(settings: &Settings, world: &World, add: &mut impl FnMut(Step, World)) {
    for n in 0..NODES as u8 {
        runs(settings, world, n, add);
        faults(settings, world, n, add);
        for event in 0..EVENTS as u8 {
            if is_unheld(world, n, event) && settings.variant != Variant::WithoutCheck {
                let mut after = world.clone();
                after.change(event, Event::Open);
                add(Step::Check { node: n, event }, after);
            }
        }
    }
    for event in 0..EVENTS as u8 {
        if world.is_orphan(event) && settings.variant != Variant::ReleasesOrphansOnce {
            let mut after = world.clone();
            after.change(event, Event::Open);
            add(Step::ReleaseOrphan(event), after);
        }
    }
}

fn runs(settings: &Settings, world: &World, n: u8, add: &mut impl FnMut(Step, World)) {
    let node = &world.nodes[usize::from(n)];
    let guarded = settings.variant != Variant::UnguardedMark;
    if let Some(copy) = node.stray {
        let mut after = world.clone();
        after.node(n).stray = None;
        after.commit_effect(copy, guarded);
        add(Step::HandleLate(n), after);
    }
    let Some(first) = node.held.first().copied() else { return };
    let mut after = world.clone();
    let handled = after.commit_effect(first, guarded);
    let unheard = after.clone();
    end_run(settings, &mut after, n, handled);
    add(Step::Handle(n), after);
    if world.failures > 0 {
        let mut unheard = World { failures: world.failures - 1, ..unheard };
        end_run(settings, &mut unheard, n, false);
        add(Step::HandleUnheard(n), unheard);
        let mut failed = World { failures: world.failures - 1, ..world.clone() };
        failed.release(first);
        end_run(settings, &mut failed, n, false);
        add(Step::Fail(n), failed);
    }
}

/// The first held event is done. If it is not handled, those behind it are released.
fn end_run(settings: &Settings, world: &mut World, n: u8, is_handled: bool) {
    let node = world.node(n);
    node.held.remove(0);
    if is_handled {
        return;
    }
    node.failed_meanwhile = node.round != Round::Idle;
    if settings.variant != Variant::KeepsKnowledge {
        node.known = None;
    }
    let behind: Vec<Copy> = std::mem::take(&mut node.held);
    behind.into_iter().for_each(|copy| world.release(copy));
}

/// Whether a node has claimed an event and neither holds it nor is about to. A delivery whose
/// birth it is about to hear of counts as unheld: a check may come before that.
fn is_unheld(world: &World, n: u8, event: u8) -> bool {
    let node = &world.nodes[usize::from(n)];
    let claims = match &node.round {
        Round::Claiming(claims) => claims.iter().any(|(copy, _)| copy.event == event),
        _ => false,
    };
    world.event(event) == Event::Claimed(Owner::Node(n))
        && node.holds() & (1 << event) == 0
        && !claims
}

fn faults(settings: &Settings, world: &World, n: u8, add: &mut impl FnMut(Step, World)) {
    let node = &world.nodes[usize::from(n)];
    if world.crashes > 0 && n == 0 {
        let mut after = World { crashes: world.crashes - 1, ..world.clone() };
        crash(&mut after, n);
        add(Step::Crash(n), after);
    }
    if is_named(world, Owner::Dead(n)) {
        let mut after = world.clone();
        after.rename(Owner::Dead(n), Owner::Gone);
        release_all_orphans(settings, &mut after);
        add(Step::DeleteDead(n), after);
    }
    if world.suspicions > 0 && n == 0 && node.registered {
        let mut after = World { suspicions: world.suspicions - 1, ..world.clone() };
        after.node(n).registered = false;
        release_all_orphans(settings, &mut after);
        add(Step::Suspect(n), after);
    }
    if !node.registered {
        let mut after = world.clone();
        after.rename(Owner::Node(n), Owner::Gone);
        let node = after.node(n);
        let running = node.held.first().copied();
        *node = Node { stray: node.stray, staged: node.staged, ..Node::new() };
        if let Some(running) = running {
            let mut runs_on = after.clone();
            runs_on.node(n).stray = Some(running);
            add(Step::Rejoin { node: n, runs_on: true }, runs_on);
        }
        add(Step::Rejoin { node: n, runs_on: false }, after);
    }
}

/// What a crashed process had sent may arrive later.
fn crash(world: &mut World, n: u8) {
    let node = world.node(n);
    let identity = if node.registered { Owner::Dead(n) } else { Owner::Gone };
    let sent = node.staged.take().filter(|staged| !staged.landed);
    let sent = sent.map(|staged| Staged { owner: identity, ..staged });
    *node = Node::new();
    world.late = sent.or(world.late);
    world.rename(Owner::Node(n), identity);
}

fn is_named(world: &World, owner: Owner) -> bool {
    world.events.contains(&Event::Claimed(owner))
        || world.late.is_some_and(|late| late.owner == owner)
}

/// With this defect claims are released here and nowhere else.
fn release_all_orphans(settings: &Settings, world: &mut World) {
    if settings.variant == Variant::ReleasesOrphansOnce {
        for event in 0..EVENTS as u8 {
            if world.is_orphan(event) {
                world.change(event, Event::Open);
            }
        }
    }
}
