//! How far the handlers of a shard are.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{DeliveryState, SubscriptionState};
use ekbatan_core::shard::{Databases, Shard};

use crate::dead_letter::{DeadLetter, DeadLetterState};
use crate::error::EventsError;
use crate::nodes::registration::Registrar;
use crate::remote::call::{RemoteCall, RemoteCallState};

/// How far a handler is on one shard.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeliveryStatus {
    /// The stored name of the handler.
    pub handler: String,
    /// The number of events that it has not handled yet. It includes those that follow.
    pub pending: u64,
    /// The number of events that have failed and are tried again.
    pub failing: u64,
    /// The number of events that were given up and wait for somebody.
    pub parked: u64,
    /// The number of events that wait behind a parked one of their model.
    pub blocked: u64,
    /// The number of dead letters that nobody has settled.
    pub dead_letters: u64,
    /// The number of remote calls of which it is not known whether they happened.
    pub in_doubt: u64,
    /// The date of the oldest event that it has not handled yet.
    pub oldest: Option<DateTime<Utc>>,
    /// Whether it is paused on all nodes.
    pub is_paused: bool,
    /// Whether it is retired, or has another name by now.
    pub is_retired: bool,
    /// Whether no node has registered it yet. So it is with an action whose calls are enqueued and that
    /// no node was given: they wait for such a node.
    pub is_unknown: bool,
}

/// Reads how far each handler of a shard is, ordered by name.
pub(crate) async fn status(
    databases: &Databases,
    shard: &Shard,
) -> Result<Vec<DeliveryStatus>, EventsError> {
    let mut by_handler: BTreeMap<String, DeliveryStatus> = BTreeMap::new();
    for row in Registrar::new(databases, shard).all().await? {
        let of = entry(&mut by_handler, &row.handler);
        of.is_paused |= row.state == SubscriptionState::Paused;
        // It is retired if it has subscriptions, and all of them are withdrawn.
        of.is_retired = !row.state.is_subscribed() && (of.is_unknown || of.is_retired);
        of.is_unknown = false;
    }
    for row in shard.backlog().await? {
        let of = entry(&mut by_handler, &row.handler);
        of.pending += row.count;
        of.oldest = of.oldest.into_iter().chain(row.oldest).min();
        match row.state {
            DeliveryState::Parked => of.parked += row.count,
            DeliveryState::Blocked => of.blocked += row.count,
            _ if row.failed => of.failing += row.count,
            _ => {}
        }
    }
    let dead_letters = databases.repository::<DeadLetter>().on_shard(shard);
    let remote_calls = databases.repository::<RemoteCall>().on_shard(shard);
    for of in by_handler.values_mut() {
        let in_doubt = RemoteCall::STATE.eq(RemoteCallState::InDoubt);
        let in_doubt = in_doubt & RemoteCall::HANDLER.eq(of.handler.clone());
        of.in_doubt = remote_calls.count_where(in_doubt).await?;
        let dead = DeadLetter::STATE.eq(DeadLetterState::Dead);
        let dead = dead & DeadLetter::HANDLER.eq(of.handler.clone());
        of.dead_letters = dead_letters.count_where(dead).await?;
    }
    Ok(by_handler.into_values().collect())
}

fn entry<'b>(
    by_handler: &'b mut BTreeMap<String, DeliveryStatus>,
    handler: &str,
) -> &'b mut DeliveryStatus {
    by_handler.entry(handler.to_owned()).or_insert_with(|| DeliveryStatus {
        handler: handler.to_owned(),
        pending: 0,
        failing: 0,
        parked: 0,
        blocked: 0,
        dead_letters: 0,
        in_doubt: 0,
        oldest: None,
        is_paused: false,
        is_retired: false,
        is_unknown: true,
    })
}
