//! What happens at the server and in the database, and on the way there.

use super::message::Message;
use super::settings::{Settings, Variant};
use super::step::Step;
use super::world::{Broken, Phase, Work, World};

pub(super) fn steps(settings: &Settings, world: &World, add: &mut dyn FnMut(Step, World)) {
    let mut ticked = world.clone();
    ticked.tick();
    add(Step::Tick, ticked);
    for (n, message) in world.messages.iter().enumerate() {
        if n > 0 && world.messages[n - 1] == *message {
            continue;
        }
        let mut without = world.clone();
        without.messages.remove(n);
        if settings.losses {
            add(Step::Lose(*message), without.clone());
        }
        arrive(settings, &mut without, *message);
        add(Step::Deliver(*message), without);
    }
    if settings.forces {
        force(settings, world, add);
    }
}

fn force(settings: &Settings, world: &World, add: &mut dyn FnMut(Step, World)) {
    let Some((owner, token)) = world.seen else {
        if let Some(owner) = world.row.owner
            && world.row.left > 0
        {
            let mut after = world.clone();
            after.seen = Some((owner, world.row.token));
            add(Step::Inspect, after);
        }
        return;
    };
    let mut after = world.clone();
    after.seen = None;
    let stands = world.row.left > 0 && world.row.owner.is_some();
    let is_it = world.row.owner == Some(owner) && world.row.token == token;
    if stands && (is_it || settings.variant == Variant::ForceEndsWhatStands) {
        after.forced |= 1 << token;
        after.hand_over(settings, None);
    }
    add(Step::Force, after);
}

/// A message arrives where it is sent.
fn arrive(settings: &Settings, world: &mut World, message: Message) {
    match message {
        Message::Ask { owner, ends } => {
            let row = &mut world.row;
            if row.owner == Some(owner) && row.left > 0 {
                // Asked twice: it has the key already.
                return;
            }
            let is_free = row.owner.is_none() || row.left == 0;
            if settings.variant == Variant::RegistersLater && !is_free {
                return world.send(Message::Busy { owner });
            }
            if !row.waiters.contains(&owner) {
                row.waiters.push(owner);
            }
            if is_free {
                world.hand_over(settings, Some((owner, ends)));
            }
        }
        Message::Register { owner } => {
            let row = &mut world.row;
            if row.owner != Some(owner) && !row.waiters.contains(&owner) {
                row.waiters.push(owner);
            }
        }
        Message::Extend { owner, token, ends } => {
            let row = &mut world.row;
            let stands = row.owner == Some(owner) && row.token == token && row.left > 0;
            if stands {
                (row.left, row.unconfirmed) = (settings.term, None);
            }
            world.send(Message::Extended { owner, token, ends: stands.then_some(ends) });
        }
        Message::Release { owner } => {
            let row = &mut world.row;
            row.waiters.retain(|waiter| *waiter != owner);
            let is_its = row.owner == Some(owner);
            let any = settings.variant == Variant::ReleasesWhatStands;
            if is_its || (any && row.owner.is_some()) {
                world.hand_over(settings, None);
            }
        }
        Message::Commit { token, fresh } => {
            let fenced = settings.variant != Variant::WithoutFence;
            if !fenced || world.fence == token {
                if !fresh {
                    world.broken = Some(Broken::BothCommitted);
                }
                world.committed();
            }
        }
        Message::Busy { owner } => {
            let waits = world.caller_of(owner).is_some_and(|c| c.phase == Phase::Waiting);
            if waits {
                world.send(Message::Register { owner });
            }
        }
        Message::Granted { owner, token, ends, confirmed } => {
            // A grant whose term is over on arrival is none.
            let left = match settings.variant {
                Variant::TermFromArrival if !confirmed => settings.confirm,
                _ => ends,
            };
            if let Some(caller) = world.caller_of(owner)
                && caller.phase == Phase::Waiting
                && left > 0
            {
                caller.phase = Phase::Holding { token, left, confirmed, work: Work::Nothing };
            }
        }
        Message::Extended { owner, token: of, ends } => {
            let Some(caller) = world.caller_of(owner) else { return };
            if let Phase::Holding { token, left, confirmed, .. } = &mut caller.phase
                && *token == of
            {
                let Some(ends) = ends else { return world.leave(owner.caller) };
                *left = ends.max(*left);
                *confirmed = true;
            }
        }
    }
}
