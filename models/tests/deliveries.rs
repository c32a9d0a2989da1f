//! The handling of events, in every state that it can reach: as it is meant, and with defects that
//! the search must find.

use ekbatan_models::deliveries::{Broken, Deliveries, Settings, Variant};
use ekbatan_models::{Explored, Trace};

fn explore(settings: Settings) -> Explored<Deliveries> {
    let explored = Explored::of(&Deliveries(settings));
    println!("{settings:?}: {} states, {} steps", explored.states(), explored.steps());
    explored
}

/// No rule is broken in any state, and each event that is committed is handled.
fn holds(settings: Settings, at_least: usize) {
    let explored = explore(settings);
    if let Some((broken, trace)) = &explored.broken {
        panic!("{broken:?}:\n{trace}");
    }
    for event in 0..3 {
        if let Some(trace) = explored.waits_for_ever(event) {
            panic!("event {event} waits for ever:\n{trace}");
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

/// A run in which an event is never handled, although no other rule is broken.
fn starves(settings: Settings) -> Trace {
    let explored = explore(settings);
    assert!(explored.broken.is_none(), "{:?}", explored.broken);
    let trace = (0..3).find_map(|event| explored.waits_for_ever(event));
    let trace = trace.expect("the search finds the defect");
    println!("waits for ever:\n{trace}");
    trace
}

/// Nothing goes wrong, and nobody claims at birth.
fn calm(variant: Variant) -> Settings {
    let settings = Settings::new(variant);
    Settings { births: 0, foreign: 0, crashes: 0, suspicions: 0, failures: 0, ..settings }
}

fn is_among(steps: &[String], text: &str) -> bool {
    steps.iter().any(|step| step.contains(text))
}

#[test]
fn events_are_handled_once_and_in_order_without_births_under_every_fault() {
    holds(Settings { births: 0, ..Settings::new(Variant::Correct) }, 500_000);
}

#[test]
fn births_of_two_nodes_beside_another_program() {
    holds(Settings { births: 2, foreign: 1, ..calm(Variant::Correct) }, 500_000);
}

#[test]
fn births_beside_handlers_that_fail() {
    holds(Settings { births: 1, failures: 1, ..calm(Variant::Correct) }, 100_000);
}

#[test]
fn births_of_a_process_that_crashes() {
    holds(Settings { births: 1, crashes: 1, ..calm(Variant::Correct) }, 100_000);
}

#[test]
fn births_of_a_node_that_is_taken_for_dead() {
    holds(Settings { births: 1, suspicions: 1, ..calm(Variant::Correct) }, 300_000);
}

#[test]
fn without_the_guard_on_the_mark_an_event_has_its_effect_twice() {
    let settings = Settings { suspicions: 1, ..calm(Variant::UnguardedMark) };
    let steps = broken(settings, Broken::TwoEffects);
    assert!(is_among(&steps, "living node 0 is deleted"), "{steps:#?}");
}

#[test]
fn claims_that_are_released_only_once_strand_a_commit_that_comes_late() {
    let settings = Settings { births: 1, crashes: 1, ..calm(Variant::ReleasesOrphansOnce) };
    let trace = starves(settings);
    let late = |step: &String| step == "the commit of a crashed process arrives";
    let deleted = |step: &String| step == "the row of crashed node 0 is deleted";
    let at = |what: &dyn Fn(&String) -> bool| trace.steps.iter().position(what);
    assert!(at(&late) > at(&deleted), "{trace}");
}

#[test]
fn a_sweep_before_the_due_ones_are_read_lets_an_event_be_overtaken() {
    let steps = broken(Settings { foreign: 1, ..calm(Variant::SweepsFirst) }, Broken::Overtaken);
    assert!(is_among(&steps, "another program commits"), "{steps:#?}");
}

#[test]
fn a_round_that_ignores_what_others_hold_overtakes_them() {
    broken(calm(Variant::IgnoresObstacles), Broken::Overtaken);
}

#[test]
fn a_round_that_ignores_a_failure_overtakes_the_failed_event() {
    let settings = Settings { failures: 1, ..calm(Variant::ForgetsFailures) };
    let steps = broken(settings, Broken::Overtaken);
    assert!(is_among(&steps, "fails"), "{steps:#?}");
}

#[test]
fn a_birth_without_knowledge_overtakes_what_others_committed() {
    broken(Settings { births: 1, ..calm(Variant::BornClaimedAlways) }, Broken::Overtaken);
}

#[test]
fn a_birth_that_rests_on_a_failed_event_overtakes_it() {
    let with = |variant| Settings { births: 1, failures: 1, ..calm(variant) };
    let steps = broken(with(Variant::TakesBirthsUnseen), Broken::Overtaken);
    assert!(is_among(&steps, "hears of its commit"), "{steps:#?}");
    broken(with(Variant::KeepsKnowledge), Broken::Overtaken);
}

#[test]
fn without_a_check_a_birth_that_nobody_heard_of_is_never_handled() {
    let trace = starves(Settings { births: 1, failures: 1, ..calm(Variant::WithoutCheck) });
    assert!(is_among(&trace.steps, "never hears of its commit"), "{trace}");
}
