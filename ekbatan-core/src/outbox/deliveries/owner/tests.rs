//! A node as commits see it: what it takes, and what it returns.

use chrono::DateTime;

use super::super::{DeliveryState, NewDelivery};
use super::*;
use crate::db::ActionId;

const LEDGER: &str = "ledger.post";
const MAIL: &str = "mail.send";
const SINCE: Option<i64> = Some(3);

/// A node with an ordered and an unordered handler.
fn owner() -> DeliveryOwner {
    let handler = |name, is_ordered| OwnedHandler {
        name,
        since: SINCE,
        is_ordered,
        most: 4,
        paused: Arc::default(),
        begins_closed: false,
    };
    let handlers = vec![handler(LEDGER, true), handler(MAIL, false)];
    DeliveryOwner::new(node(), handlers)
}

fn node() -> Uuid {
    Uuid::from_u128(42)
}

fn wallet(version: i64) -> ModelVersion {
    ModelVersion { model: "Wallet", id: Uuid::from_u128(7), version }
}

fn born(handler: &str, of: ModelVersion) -> Born {
    let id = Uuid::from_u128(of.version as u128);
    let event_date = DateTime::from_timestamp_micros(0).unwrap();
    let (stream, model_version) = (of.id, of.version);
    let delivery = NewDelivery {
        event_id: id,
        stream,
        model_version,
        event_index: 0,
        event_date,
        is_delayed: false,
        priority: Priority::Normal,
    };
    let (_, delivery) = delivery.stage(handler, Some(node())).unwrap();
    let event = StoredEvent {
        id,
        namespace: String::new(),
        action: ActionId(id),
        action_name: String::new(),
        model_id: of.id.to_string(),
        model_type: of.model.to_owned(),
        model_version: Some(model_version),
        event_type: String::new(),
        event_version: 1,
        payload: String::new(),
        date: event_date,
        principal: None,
        trace_parent: None,
    };
    Born { delivery, event }
}

fn reserve(owner: &DeliveryOwner, handler: &str, version: i64) -> Option<Reserved> {
    owner.reserve(SINCE, handler, wallet(version), normal(1))
}

fn normal(count: usize) -> PriorityCounts {
    PriorityCounts::of(std::iter::repeat_n(Priority::Normal, count))
}

fn room(owner: &DeliveryOwner, handler: &str) -> usize {
    owner.room(handler, Priority::Normal, 4)
}

fn hand_over(owner: &DeliveryOwner, reserved: Reserved) {
    let handler = owner.handlers[reserved.handler].name;
    owner.hand_over(reserved, vec![born(handler, reserved.of)]);
}

fn versions(arrived: &Arrived) -> (Vec<i64>, Vec<i64>) {
    let born = arrived.born.iter().map(|one| one.delivery.model_version).collect();
    (born, arrived.returned.iter().map(|one| one.model_version).collect())
}

#[test]
fn what_is_handed_over_is_as_it_was_inserted() {
    let owner = owner();
    let reserved = reserve(&owner, LEDGER, 1).unwrap();
    assert_eq!(reserved.node, node());
    hand_over(&owner, reserved);
    let arrived = owner.take();
    let delivery = &arrived.born[0].delivery;
    assert_eq!(
        (delivery.version(), delivery.state, delivery.node),
        (1, DeliveryState::Claimed, node())
    );
    assert!(owner.take().born.is_empty());
}

#[test]
fn a_closed_handler_takes_nothing_until_it_is_opened() {
    let owner = owner();
    owner.close_handler(MAIL);
    assert!(reserve(&owner, MAIL, 1).is_none());
    assert!(reserve(&owner, LEDGER, 1).is_some(), "the other one is open");
    owner.open_handler(MAIL);
    assert!(reserve(&owner, MAIL, 1).is_some());
}

#[test]
fn what_a_failed_run_was_before_is_returned() {
    let owner = owner();
    let first = reserve(&owner, LEDGER, 1).unwrap();
    hand_over(&owner, first);
    assert_eq!(versions(&owner.take()), (vec![1], vec![]));
    let second = reserve(&owner, LEDGER, 2).unwrap();
    hand_over(&owner, second);
    // The third is being committed while the first one fails, and the second was not taken yet.
    let third = reserve(&owner, LEDGER, 3).unwrap();
    let behind = owner.forget(LEDGER, wallet(1).id);
    assert_eq!(behind[0].delivery.model_version, 2);
    hand_over(&owner, third);
    assert_eq!(versions(&owner.take()), (vec![], vec![3]));
    assert!(reserve(&owner, LEDGER, 4).is_none());
    assert_eq!(owner.in_flight(), 0);
}

#[test]
fn what_was_reserved_under_another_identity_is_returned() {
    let owner = owner();
    let taken = reserve(&owner, MAIL, 1).unwrap();
    hand_over(&owner, taken);
    let [ordered, unordered] = [LEDGER, MAIL].map(|name| reserve(&owner, name, 1).unwrap());
    owner.begin_epoch(None);
    assert!(reserve(&owner, MAIL, 1).is_none(), "without an identity");
    hand_over(&owner, ordered);
    owner.begin_epoch(Some(Uuid::from_u128(43)));
    hand_over(&owner, unordered);
    assert_eq!(versions(&owner.take()), (vec![], vec![1, 1, 1]));
    assert_eq!(owner.in_flight(), 0);
}

#[test]
fn a_stream_of_an_earlier_epoch_is_not_known() {
    let owner = owner();
    hand_over(&owner, reserve(&owner, LEDGER, 1).unwrap());
    let second = reserve(&owner, LEDGER, 2).unwrap();
    // The identity was lost, and is back.
    owner.begin_epoch(None);
    owner.begin_epoch(Some(node()));
    hand_over(&owner, second);
    assert_eq!(versions(&owner.take()), (vec![], vec![1, 2]));
}

#[test]
fn room_is_reserved_until_it_is_given_up_or_held() {
    let owner = owner();
    let reserved = [1, 2, 3, 4].map(|version| reserve(&owner, MAIL, version).unwrap());
    assert!(reserve(&owner, MAIL, 5).is_none());
    assert_eq!((room(&owner, MAIL), room(&owner, LEDGER)), (0, 4));
    owner.give_up(reserved[0]);
    assert_eq!((room(&owner, MAIL), owner.in_flight()), (1, 3));
    hand_over(&owner, reserved[1]);
    assert_eq!((room(&owner, MAIL), owner.in_flight()), (1, 3));
    owner.take();
    assert_eq!((room(&owner, MAIL), owner.in_flight()), (1, 2));
    owner.set_held(|_| PriorityCounts::default());
    assert_eq!(room(&owner, MAIL), 2);
    assert!(owner.reserve(SINCE, MAIL, wallet(6), normal(3)).is_none(), "all of a version or none");
}

#[test]
fn a_node_that_is_full_of_calls_takes_those_of_higher_priority() {
    let owner = owner();
    let low = PriorityCounts::of(std::iter::repeat_n(Priority::Low, 4));
    let reserved = owner.reserve(SINCE, MAIL, wallet(1), low).unwrap();
    let one = PriorityCounts::one;
    assert!(owner.reserve(SINCE, MAIL, wallet(2), one(Priority::Low)).is_none());
    assert!(reserve(&owner, MAIL, 3).is_some());
    assert!(owner.reserve(SINCE, MAIL, wallet(4), normal(1) + one(Priority::Low)).is_none());
    assert_eq!((room(&owner, MAIL), owner.in_flight()), (3, 5));
    owner.give_up(reserved);
    assert_eq!(owner.room(MAIL, Priority::Low, 4), 3);
}

#[test]
fn a_paused_handler_and_a_node_that_ends_reserve_nothing() {
    let owner = owner();
    let before = reserve(&owner, MAIL, 1).unwrap();
    owner.handlers[1].paused.store(true, Ordering::Relaxed);
    assert!(reserve(&owner, MAIL, 1).is_none());
    assert!(reserve(&owner, LEDGER, 1).is_some(), "the other handler is not paused");
    owner.handlers[1].paused.store(false, Ordering::Relaxed);
    owner.close();
    assert!(reserve(&owner, MAIL, 1).is_none());
    hand_over(&owner, before);
    assert_eq!(versions(&owner.take()), (vec![], vec![1]));
}

#[test]
fn commits_with_other_subscriptions_than_the_handler_has_break_the_chain() {
    for other in [None, Some(2), Some(4)] {
        let owner = owner();
        assert!(owner.reserve(other, LEDGER, wallet(1), normal(1)).is_none());
        hand_over(&owner, reserve(&owner, LEDGER, 1).unwrap());
        owner.pass(|_| other, &[wallet(2)], |_, _| false);
        assert!(reserve(&owner, LEDGER, 3).is_none(), "the sweep may insert one of the second");
        owner.await_claims(other, LEDGER, wallet(2), vec![Uuid::from_u128(2)]);
        owner.claimed(LEDGER, &born(LEDGER, wallet(2)).delivery);
        assert!(reserve(&owner, LEDGER, 3).is_none(), "it may insert one more");
        owner.pass(|_| SINCE, &[wallet(2)], |_, _| true);
        assert!(reserve(&owner, LEDGER, 3).is_none());
        owner.pass(|_| SINCE, &[wallet(2)], |_, _| false);
        assert!(reserve(&owner, LEDGER, 3).is_some());
    }
}
