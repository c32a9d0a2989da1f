//! What callers do. A caller that stands still is one that does none of it for a while.

use super::message::Message;
use super::settings::{PROCESS_OF, Settings, Variant};
use super::step::Step;
use super::world::{Phase, Work, World};

/// Adds a step and what it changes.
type Changes<'c> = dyn FnMut(Step, &dyn Fn(&mut World)) + 'c;

pub(super) fn steps(settings: &Settings, world: &World, add: &mut dyn FnMut(Step, World)) {
    let may_send = world.messages.len() < settings.messages;
    for n in 0..world.callers.len() as u8 {
        let mut after = |step: Step, change: &dyn Fn(&mut World)| {
            let mut after = world.clone();
            change(&mut after);
            add(step, after);
        };
        let owner = world.owner(n);
        match world.callers[usize::from(n)].phase {
            Phase::Idle if may_send && owner.round <= settings.left_behind => {
                after(Step::Start(n), &|world| {
                    world.callers[usize::from(n)].phase = Phase::Waiting;
                    world.send(Message::Ask { owner, ends: settings.term });
                });
            }
            Phase::Idle => {}
            Phase::Waiting => {
                if settings.gives_up {
                    after(Step::GiveUp(n), &|world| {
                        world.send(Message::Release { owner });
                        world.leave(n);
                    });
                }
                if settings.variant != Variant::WithoutSafetyNet {
                    after(Step::Look(n), &|world| look(settings, world, n));
                }
            }
            Phase::Holding { token, left, confirmed, work } => {
                holding(settings, world, n, (token, left, confirmed, work), &mut after);
            }
        }
    }
    if settings.crashes {
        for process in 0..=PROCESS_OF.iter().copied().max().unwrap_or_default() {
            let mut after = world.clone();
            after.crash(process);
            add(Step::Crash(process), after);
        }
    }
}

/// The safety net of a waiter: the grant whose message was lost, a grant that has expired, or
/// the waiter's own place.
fn look(settings: &Settings, world: &mut World, n: u8) {
    let owner = world.owner(n);
    // It looks when it has not heard anything for long, so nothing is on its way.
    if world.is_on_its_way(|message| message.owner() == Some(owner)) {
        return;
    }
    let row = &world.row;
    if row.owner == Some(owner) && row.left > 0 {
        let (token, confirmed) = (row.token, row.unconfirmed.is_none());
        let ends = row.left.min(settings.term);
        world.send(Message::Granted { owner, token, ends, confirmed });
        return;
    }
    if row.owner.is_some() && row.left == 0 {
        world.hand_over(settings, None);
    }
    // Both in one look: otherwise callers that come and go can keep it busy for ever with the
    // grants that they leave behind.
    if world.row.owner != Some(owner) && !world.row.waiters.contains(&owner) {
        world.send(Message::Ask { owner, ends: settings.term });
    }
}

fn holding(
    settings: &Settings,
    world: &World,
    n: u8,
    (token, left, confirmed, work): (u8, u8, bool, Work),
    after: &mut Changes<'_>,
) {
    let owner = world.owner(n);
    let may_send = world.messages.len() < settings.messages;
    let set = |world: &mut World, to: Work| {
        if let Phase::Holding { work, .. } = &mut world.callers[usize::from(n)].phase {
            *work = to;
        }
    };
    let extends = |message: &Message| {
        let of_extension = matches!(message, Message::Extend { .. } | Message::Extended { .. });
        of_extension && message.owner() == Some(owner)
    };
    let may_extend = !confirmed || (settings.extends && may_send && left < settings.term);
    if left > 0 && may_extend && !world.is_on_its_way(extends) {
        let step = if confirmed { Step::Extend(n) } else { Step::Confirm(n) };
        after(step, &|world| {
            world.send(Message::Extend { owner, token, ends: settings.term });
        });
    }
    // A caller that stands still between a look at its clock and what it does next does it late.
    if settings.commits && work == Work::Nothing {
        after(Step::Begin(n), &|world| {
            if settings.variant != Variant::WithoutFence && token < world.fence {
                return world.leave(n);
            }
            world.fence = world.fence.max(token);
            set(world, Work::Read { fresh: true });
        });
    }
    if let Work::Read { fresh } = work
        && may_send
    {
        after(Step::Commit(n), &|world| {
            world.send(Message::Commit { token, fresh });
            set(world, Work::Sent);
        });
    }
    if left == 0 {
        after(Step::Expire(n), &|world| world.leave(n));
    } else {
        after(Step::Release(n), &|world| {
            world.send(Message::Release { owner });
            world.leave(n);
        });
    }
}
