//! The hand-over of a lease, in every state that it can reach: as it is meant, and with defects
//! that the search must find.

use ekbatan_models::hand_over::{Broken, HandOver, Settings, Variant};
use ekbatan_models::{Explored, Trace};

fn explore(settings: Settings) -> Explored<HandOver> {
    let explored = Explored::of(&HandOver(settings));
    println!("{settings:?}: {} states, {} steps", explored.states(), explored.steps());
    explored
}

/// No rule is broken in any state, and no waiter waits for ever.
fn holds(settings: Settings, at_least: usize) {
    let explored = explore(settings);
    if let Some((broken, trace)) = &explored.broken {
        panic!("{broken:?}:\n{trace}");
    }
    for waiter in 0..settings.callers as u32 {
        if let Some(trace) = explored.waits_for_ever(waiter) {
            panic!("caller {waiter} waits for ever:\n{trace}");
        }
    }
    // A model in which little can happen proves little.
    assert!(explored.states() > at_least, "only {} states", explored.states());
}

/// The steps to the first broken rule.
fn broken(settings: Settings, expected: Broken) -> Vec<String> {
    let (broken, trace) = explore(settings).broken.expect("the search finds the defect");
    println!("{broken:?}:\n{trace}");
    assert_eq!(broken, expected);
    trace.steps
}

/// A run in which somebody waits for ever, although no other rule is broken.
fn starves(settings: Settings) -> Trace {
    let explored = explore(settings);
    assert!(explored.broken.is_none(), "{:?}", explored.broken);
    let waiters = 0..settings.callers as u32;
    let trace = waiters.into_iter().find_map(|waiter| explored.waits_for_ever(waiter));
    let trace = trace.expect("the search finds the defect");
    println!("waits for ever:\n{trace}");
    trace
}

/// Two callers, and nothing but crashes and losses.
fn small(variant: Variant) -> Settings {
    let without = Settings { forces: false, commits: false, gives_up: false, ..both(variant) };
    Settings { extends: false, ..without }
}

fn both(variant: Variant) -> Settings {
    Settings { callers: 2, ..Settings::new(variant) }
}

#[test]
fn two_waiters_and_a_holder_under_every_fault() {
    let all = Settings::new(Variant::Correct);
    holds(Settings { commits: false, extends: false, messages: 1, ..all }, 300_000);
}

#[test]
fn a_waiter_and_a_holder_that_commit_under_every_fault() {
    holds(both(Variant::Correct), 150_000);
}

/// An earlier acquisition of a caller has requests on their way when the caller asks again.
/// Here only the rules are checked: the model has no bound on how old these requests get, so it
/// cannot say that waits end.
#[test]
fn what_earlier_acquisitions_left_behind_breaks_no_rule() {
    let settings = Settings { left_behind: 1, commits: false, ..both(Variant::Correct) };
    let explored = explore(settings);
    assert!(explored.broken.is_none(), "{:?}", explored.broken);
    assert!(explored.states() > 100_000, "only {} states", explored.states());
}

#[test]
fn a_force_that_ends_what_stands_makes_two_holders() {
    let settings = Settings { forces: true, gives_up: true, ..small(Variant::ForceEndsWhatStands) };
    let steps = broken(settings, Broken::TwoHolders);
    let seen = steps.iter().position(|step| step == "an operator looks who holds the key");
    let force = "the operator's release by force arrives";
    let forced = steps.iter().position(|step| step == force);
    // In between the key went to somebody else.
    assert!(steps[seen.unwrap()..forced.unwrap()].iter().any(|step| step.contains("the grant")));
}

#[test]
fn without_a_confirm_term_a_dead_waiter_keeps_the_key() {
    let trace = starves(small(Variant::HandsOverForEver));
    assert!(trace.steps.iter().any(|step| step.contains("crashes") || step.contains("is lost")));
    broken(small(Variant::HandsOverAWholeTerm), Broken::UnconfirmedForTooLong);
}

#[test]
fn a_term_that_begins_at_the_waiters_clock_makes_two_holders() {
    let steps = broken(small(Variant::TermFromArrival), Broken::TwoHolders);
    // The message took longer than the term.
    assert!(steps.iter().any(|step| step == "the clock ticks"), "{steps:#?}");
}

#[test]
fn a_registration_apart_from_the_look_loses_a_wake_up() {
    let settings = small(Variant::RegistersLater);
    let steps = broken(settings, Broken::WaitsAtAFreeKey);
    assert!(steps.last().unwrap().starts_with("the registration of"), "{steps:#?}");
    // And that waiter does wait for ever, unless another caller comes.
    let settings = Settings { may_wait_at_free_keys: true, ..settings };
    let trace = starves(settings);
    assert!(trace.steps.iter().any(|step| step.starts_with("the registration of")), "{trace}");
}

#[test]
fn a_release_that_ends_what_stands_makes_two_holders() {
    let settings = Settings { gives_up: true, ..small(Variant::ReleasesWhatStands) };
    broken(settings, Broken::TwoHolders);
}

#[test]
fn a_token_that_is_kept_is_granted_twice() {
    broken(small(Variant::KeepsTheToken), Broken::TokenNotGreater);
}

#[test]
fn without_a_fence_two_holders_commit() {
    let settings = Settings { commits: true, ..small(Variant::WithoutFence) };
    broken(settings, Broken::BothCommitted);
}

#[test]
fn without_a_safety_net_a_lost_message_is_waited_for_for_ever() {
    let trace = starves(small(Variant::WithoutSafetyNet));
    assert!(trace.steps.iter().any(|step| step.contains("crashes") || step.contains("is lost")));
}
