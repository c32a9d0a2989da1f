//! A run of a relay: a batch of events, and what becomes of their deliveries.
//!
//! Invariant: of the deliveries of a stream, a run marks those up to the first one that was not
//! acknowledged, and no others. A mark comes after its acknowledgement.

use std::collections::{HashMap, HashSet};
use std::panic::AssertUnwindSafe;

use ekbatan_core::__private::deliveries::{Delivery, StoredEvent};
use ekbatan_core::domain::Stored;
use futures_util::FutureExt;
use futures_util::future::join_all;
use tracing::{Instrument, field};
use uuid::Uuid;

use crate::claims::claimed::{Claimed, StreamKey};
use crate::claims::streams::RunPart;
use crate::failure;
use crate::handlers::any_handler::AnyRelay;
use crate::handlers::node_handler::Handler;
use crate::read_events::ClaimedEvent;
use crate::relay::{RelaySender, SentEvent, UndecodedEvent};
use crate::runs::delivery_run::{End, Ended, EndedRun, Runner};
use crate::runs::unwanted::EventUse;

/// A delivery of a batch, and what became of its event.
struct SentDelivery {
    delivery: Stored<Delivery>,
    date: chrono::DateTime<chrono::Utc>,
    /// `None`: it is left to other processes.
    event: Option<SentEvent>,
}

/// What decides on an event of a batch.
enum DecidedBy {
    /// The answer of the relay.
    Relay,
    /// It is known without sending it.
    Known(SentEvent),
    /// It is left to other processes.
    Left,
}

impl Runner {
    /// Runs the handler of claimed deliveries to its end.
    pub(crate) async fn run_all(self, mut claimed: Vec<Claimed>) -> EndedRun {
        // The threads of this process may have been busy, or stopped, since the run was handed out.
        if claimed.first().is_some_and(|first| !self.alive.is_under(first.delivery.node)) {
            return EndedRun::not_begun(claimed);
        }
        let relay = claimed.first().and_then(|first| first.handler.relay().cloned());
        match (relay, claimed.pop()) {
            (None, Some(only)) => self.run(only).await,
            (Some(relay), Some(last)) => {
                claimed.push(last);
                self.run_relay(&*relay, claimed).await
            }
            (_, None) => EndedRun::of_nothing(),
        }
    }

    /// Sends a batch and marks what was acknowledged. All deliveries were claimed by one node.
    async fn run_relay(self, relay: &dyn AnyRelay, batch: Vec<Claimed>) -> EndedRun {
        let Some(first) = batch.first() else {
            return EndedRun::of_nothing();
        };
        let handler = first.handler.clone();
        let span = tracing::info_span!(
            "ekbatan.event.relay",
            ekbatan.event.handler = handler.name,
            ekbatan.event.count = batch.len(),
            ekbatan.event.handled = field::Empty,
        );
        let ended = self.send_and_mark(&handler, relay, batch).instrument(span.clone()).await;
        let handled: usize = ended.streams.iter().map(|stream| stream.handled).sum();
        span.record("ekbatan.event.handled", handled);
        ended
    }

    async fn send_and_mark(
        &self,
        handler: &Handler,
        relay: &dyn AnyRelay,
        batch: Vec<Claimed>,
    ) -> EndedRun {
        let batch = self.read_together(batch).await;
        let shard = self.shard.identifier();
        let node = batch.first().map(|one| one.delivery.node).unwrap_or_default();
        let mut deliveries = Vec::with_capacity(batch.len());
        let mut events = Vec::with_capacity(batch.len());
        // Nothing of a stream is sent that comes after an event that is not.
        let mut stopped = HashSet::new();
        let known = batch.iter().filter_map(|one| one.event.known());
        let subscriptions = self.subscriptions_for(handler, known).await;
        for Claimed { delivery, event, .. } in batch {
            let date = event.known().map_or(delivery.due, |event| event.date);
            let event_use = event.known().map_or(EventUse::Handle, |event| {
                EventUse::of(event, handler, subscriptions.as_deref())
            });
            let decided_by = match event_use {
                _ if stopped.contains(&delivery.stream) => DecidedBy::Known(SentEvent::NotSent),
                EventUse::Handle => match self.read_for_relay(handler, event).await {
                    Ok(mut event) => {
                        let (attempt, payload) =
                            (attempt_of(&delivery), std::mem::take(&mut event.payload));
                        events.push(UndecodedEvent::new(payload, event, attempt, shard));
                        DecidedBy::Relay
                    }
                    Err(answer) => {
                        stopped.insert(delivery.stream);
                        DecidedBy::Known(answer)
                    }
                },
                EventUse::End => DecidedBy::Known(SentEvent::Acknowledged),
                EventUse::Leave => {
                    stopped.insert(delivery.stream);
                    DecidedBy::Left
                }
            };
            deliveries.push((delivery, date, decided_by));
        }
        let mut answers = self.send(handler, relay, node, &events).await.into_iter();
        let mut streams: Vec<(Option<StreamKey>, Vec<SentDelivery>)> = Vec::new();
        for (delivery, date, decided_by) in deliveries {
            let event = match decided_by {
                DecidedBy::Relay => answers.next(),
                DecidedBy::Known(event) => Some(event),
                DecidedBy::Left => None,
            };
            let key = Some((handler.name, delivery.stream));
            let sent = SentDelivery { delivery, date, event };
            // Those of one stream stand beside each other.
            match streams.last_mut() {
                Some((last, of_stream)) if *last == key => of_stream.push(sent),
                _ => streams.push((key, vec![sent])),
            }
        }
        let mut all = streams.iter().flat_map(|(_, sent)| sent);
        let unanswered = all.find_map(|sent| match &sent.event {
            Some(SentEvent::Unavailable { why }) => Some(why),
            _ => None,
        });
        let is_away = unanswered.is_some();
        if let Some(why) = unanswered {
            tracing::warn!(relay = handler.name, %shard, error = %why, "events were not accepted, or no answer came; they are sent again");
        }
        let ending = streams.into_iter().map(|(key, sent)| self.end_stream(handler, key, sent));
        let streams = join_all(ending).await;
        EndedRun { handler: handler.name, streams, part: RunPart::Handling, is_away }
    }

    /// The event with its payload, or what becomes of it instead.
    async fn read_for_relay(
        &self,
        handler: &Handler,
        event: ClaimedEvent,
    ) -> Result<StoredEvent, SentEvent> {
        match event.whole(&self.shard).await {
            Ok(Ok(event)) => Ok(event),
            Ok(Err(why)) => Err(SentEvent::Refused { why, may_pass: false }),
            Err(error) => {
                tracing::warn!(relay = handler.name, %error, "an event could not be read; it is sent later");
                Err(SentEvent::Unavailable { why: error.to_string() })
            }
        }
    }

    /// Reads the payloads that a round has left out, in one go. What fails here is read by itself.
    async fn read_together(&self, mut batch: Vec<Claimed>) -> Vec<Claimed> {
        let long: Vec<Uuid> = batch.iter().filter_map(|one| one.event.left_out()).collect();
        if long.len() < 2 {
            return batch;
        }
        let Ok(found) = self.shard.events(long).await else { return batch };
        let mut found: HashMap<Uuid, StoredEvent> =
            found.into_iter().map(|event| (event.id, event)).collect();
        for one in &mut batch {
            if let Some(event) = one.event.left_out().and_then(|id| found.remove(&id)) {
                one.event = ClaimedEvent::Whole(event);
            }
        }
        batch
    }

    /// Sends events. Answers what became of each.
    async fn send(
        &self,
        handler: &Handler,
        relay: &dyn AnyRelay,
        node: Uuid,
        events: &[UndecodedEvent],
    ) -> Vec<SentEvent> {
        // Reading the events may have taken so long that others send them by now.
        if events.is_empty() || !self.alive.is_under(node) {
            return vec![SentEvent::NotSent; events.len()];
        }
        let sender = RelaySender::new(handler.name, self.shard.identifier(), node);
        let longest = handler.options.timeout;
        // A panic is caught also where the timeout drops what the relay holds.
        let sending = async { tokio::time::timeout(longest, relay.send(sender, events)).await };
        let (mut answers, why) = match AssertUnwindSafe(sending).catch_unwind().await {
            Ok(Ok(answers)) => (answers, "the relay did not say what became of it".to_owned()),
            Ok(Err(_)) => (Vec::new(), format!("no answer within {longest:?}")),
            Err(panic) => (Vec::new(), failure::of_panic(&*panic)),
        };
        answers.resize(events.len(), SentEvent::Unavailable { why });
        answers
    }

    /// Marks what was acknowledged of a stream, and stores why the next one was refused.
    async fn end_stream(
        &self,
        handler: &Handler,
        stream: Option<StreamKey>,
        sent: Vec<SentDelivery>,
    ) -> Ended {
        let ids = sent.iter().map(|one| one.delivery.id.uuid()).collect();
        let is_acknowledged = |one: &&SentDelivery| one.event == Some(SentEvent::Acknowledged);
        let acknowledged = sent.iter().take_while(is_acknowledged).count();
        let mut rest = sent.into_iter();
        let marks = rest.by_ref().take(acknowledged).map(|one| self.marks.mark(one.delivery));
        let marked = join_all(marks).await;
        let handled = marked.iter().take_while(|marked| matches!(marked, Ok(true))).count();
        handler.count(self.shard.identifier(), |counts| counts.handled += handled as u64);
        if let Some(not_marked) = marked.into_iter().nth(handled) {
            // Another node has taken the stream over, or nothing is known. Those that follow are found
            // by the check of claimed deliveries.
            if let Err(error) = not_marked {
                tracing::warn!(relay = handler.name, %error, "that events were sent could not be stored");
            }
            return Ended { ids, stream, handled, end: End::Lost, rest: Vec::new() };
        }
        let Some(next) = rest.next() else {
            return Ended { ids, stream, handled, end: End::Handled, rest: Vec::new() };
        };
        let SentDelivery { delivery, date, event } = next;
        let mut rest: Vec<_> = rest.map(|one| one.delivery).collect();
        let not_stored = |error| {
            tracing::warn!(relay = handler.name, %error, "what became of an event could not be stored");
            End::Lost
        };
        let end = match event {
            None => self.leave(&delivery, date).await.unwrap_or_else(not_stored),
            Some(SentEvent::Refused { why, may_pass }) => {
                let attempt = attempt_of(&delivery);
                let failing = self.fail(handler, &delivery, why, attempt, date, !may_pass);
                failing.await.unwrap_or_else(not_stored)
            }
            Some(SentEvent::Unavailable { .. } | SentEvent::NotSent | SentEvent::Acknowledged) => {
                rest.insert(0, delivery);
                End::GivenBack
            }
        };
        let handled = handled + usize::from(end.is_final());
        Ended { ids, stream, handled, end, rest }
    }
}

/// The number of the run, from 1.
fn attempt_of(delivery: &Delivery) -> u32 {
    u32::try_from(delivery.attempts).unwrap_or(u32::MAX).saturating_add(1)
}
