//! One run of a handler, and what becomes of its delivery.

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, DeliveryState, StoredEvent, Subscriptions};
use ekbatan_core::action::ActionExecutor;
use ekbatan_core::clock::Clock;
use ekbatan_core::domain::{New, Stored};
use ekbatan_core::repository::Repository;
use ekbatan_core::shard::Shard;
use futures_util::FutureExt;
use tracing::{Instrument, field};
use uuid::Uuid;

use crate::HandlerContext;
use crate::claims::claimed::{Claimed, StreamKey};
use crate::claims::streams::RunPart;
use crate::dead_letter::DeadLetter;
use crate::error::EventsError;
use crate::failure;
use crate::handlers::node_handler::Handler;
use crate::nodes::alive::Alive;
use crate::nodes::membership::release_until;
use crate::nodes::registration::Registrar;
use crate::options::{AfterLastAttempt, Order};
use crate::read_events::ClaimedEvent;
use crate::remote::call::RemoteCall;
use crate::remote::store::RemoteStore;
use crate::runs::marks::Marks;
use crate::runs::unwanted::{EventUse, left_for};

/// How a run ended.
pub(crate) enum End {
    /// The handler is done. The delivery is still to be [marked](Runner::mark).
    Done(Box<Stored<Delivery>>),
    /// The event is handled.
    Handled,
    /// The handler has given it up: it is a dead letter.
    DeadLetter,
    /// The delivery is not this node's any more, or nothing is known of it.
    Lost,
    /// It is not handled, which is no fault of its own: it is given back.
    GivenBack,
    /// It is left to other processes, and waits for this pause, until then.
    Left { pause: Duration, until: DateTime<Utc> },
    /// The delivery waits until then; `None`: it is parked.
    Failed { until: Option<DateTime<Utc>> },
}

impl End {
    /// Whether later events of the stream may be handled.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Handled | Self::DeadLetter)
    }
}

/// What became of the deliveries of one stream that a run had.
pub(crate) struct Ended {
    /// All of them.
    pub(crate) ids: Vec<Uuid>,
    pub(crate) stream: Option<StreamKey>,
    /// How many of them are handled or dead letters. They are the first ones.
    pub(crate) handled: usize,
    /// How the last one ended that was run.
    pub(crate) end: End,
    /// Those behind it, which were not run.
    pub(crate) rest: Vec<Stored<Delivery>>,
}

/// A run that has ended.
pub(crate) struct EndedRun {
    pub(crate) handler: &'static str,
    pub(crate) streams: Vec<Ended>,
    /// What it was.
    pub(crate) part: RunPart,
    /// Whether it ended because what the handler needs is not there at present.
    pub(crate) is_away: bool,
}

impl EndedRun {
    /// A run that does not begin, because others may have taken over its deliveries.
    pub(crate) fn not_begun(claimed: Vec<Claimed>) -> Self {
        let mut run = Self::of_nothing();
        for one in claimed {
            run.handler = one.handler.name;
            let (id, stream) = (one.delivery.id.uuid(), one.stream());
            // Those of one stream stand beside each other.
            match run.streams.last_mut() {
                Some(last) if last.stream == stream && stream.is_some() => last.ids.push(id),
                _ => {
                    let (ids, rest) = (vec![id], Vec::new());
                    run.streams.push(Ended { ids, stream, handled: 0, end: End::Lost, rest });
                }
            }
        }
        run
    }

    /// A run of no delivery.
    pub(crate) fn of_nothing() -> Self {
        Self { handler: "", streams: Vec::new(), part: RunPart::Handling, is_away: false }
    }
}

/// What every run on a shard needs.
#[derive(Clone)]
pub(crate) struct Runner {
    pub(crate) executor: ActionExecutor,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) shard: Shard,
    pub(crate) deliveries: Repository<Delivery>,
    pub(crate) dead_letters: Repository<DeadLetter>,
    pub(crate) remote_calls: Repository<RemoteCall>,
    pub(crate) registrar: Registrar,
    pub(crate) marks: Arc<Marks>,
    pub(crate) alive: Alive,
}

impl Runner {
    /// Runs the handler of a claimed delivery to its end.
    pub(crate) async fn run(self, claimed: Claimed) -> EndedRun {
        let stream = claimed.stream();
        let Claimed { handler, delivery, event } = claimed;
        let (name, id) = (handler.name, delivery.id.uuid());
        let span = tracing::info_span!(
            "ekbatan.event.handle",
            ekbatan.event.handler = name,
            ekbatan.event.r#type = event.known().map(|event| &*event.event_type),
            ekbatan.event.id = %delivery.event_id,
            ekbatan.event.attempt = delivery.attempts + 1,
            ekbatan.event.trace_parent = event.known().and_then(|event| event.trace_parent.as_deref()),
            ekbatan.event.outcome = field::Empty,
        );
        let running = self.read_and_run(&handler, &delivery, event).instrument(span.clone());
        // Nothing is known of a delivery whose end was not stored; the check of claimed deliveries
        // finds it.
        let end = match AssertUnwindSafe(running).catch_unwind().await {
            Ok(Ok(end)) => end,
            Ok(Err(error)) => {
                tracing::warn!(handler = name, %error, "the end of a run could not be stored");
                End::Lost
            }
            Err(panic) => {
                let panic = failure::of_panic(&*panic);
                tracing::error!(handler = name, panic, "a run failed outside of its handler");
                End::Lost
            }
        };
        span.record(
            "ekbatan.event.outcome",
            match end {
                End::Done(_) | End::Handled => "handled",
                End::DeadLetter => "dead letter",
                End::Lost => "lost",
                End::GivenBack => "given back",
                End::Left { .. } => "left",
                End::Failed { until: Some(_) } => "failed",
                End::Failed { until: None } => "parked",
            },
        );
        let handled = usize::from(end.is_final());
        let ended = Ended { ids: vec![id], stream, handled, end, rest: Vec::new() };
        EndedRun { handler: name, streams: vec![ended], part: RunPart::Handling, is_away: false }
    }

    /// Marks the event of a delivery as handled whose handler is done. Meanwhile the handler may run
    /// for other models.
    pub(crate) async fn mark(
        self,
        handler: Arc<Handler>,
        stream: Option<StreamKey>,
        delivery: Stored<Delivery>,
    ) -> EndedRun {
        let id = delivery.id.uuid();
        let end = match self.marks.mark(delivery).await {
            Ok(true) => {
                handler.count(self.shard.identifier(), |counts| counts.handled += 1);
                End::Handled
            }
            Ok(false) => End::Lost,
            Err(error) => {
                tracing::warn!(handler = handler.name, %error, "that an event is handled could not be stored");
                End::Lost
            }
        };
        let handled = usize::from(end.is_final());
        let ended = Ended { ids: vec![id], stream, handled, end, rest: Vec::new() };
        let (streams, part) = (vec![ended], RunPart::Marking);
        EndedRun { handler: handler.name, streams, part, is_away: false }
    }

    async fn read_and_run(
        &self,
        handler: &Handler,
        delivery: &Stored<Delivery>,
        event: ClaimedEvent,
    ) -> Result<End, EventsError> {
        let date = event.known().map_or(delivery.due, |event| event.date);
        if let Some(event) = event.known() {
            let subscriptions = self.subscriptions_for(handler, [event]).await;
            match EventUse::of(event, handler, subscriptions.as_deref()) {
                EventUse::Handle => {}
                EventUse::End => return Ok(End::Done(Box::new(delivery.clone()))),
                EventUse::Leave => return self.leave(delivery, date).await,
            }
        }
        match event.whole(&self.shard).await {
            // Reading the event may have taken so long that others handle it by now.
            Ok(_) if !self.alive.is_under(delivery.node) => Ok(End::Lost),
            Ok(Ok(event)) => self.run_once(handler, delivery, event).await,
            Ok(Err(why)) => {
                handler.count(self.shard.identifier(), |counts| counts.failed += 1);
                let attempt = failures_of(delivery).saturating_add(1);
                self.give_up(handler, delivery, why, attempt).await
            }
            Err(error) => {
                let why = format!("the event could not be read: {error}");
                let attempt = failures_of(delivery).saturating_add(1);
                self.fail(handler, delivery, why, attempt, date, false).await
            }
        }
    }

    async fn run_once(
        &self,
        handler: &Handler,
        delivery: &Stored<Delivery>,
        event: StoredEvent,
    ) -> Result<End, EventsError> {
        // An operator who lets an event be tried again wants it to run, however old it is.
        let is_wanted = delivery.attempts == 0 && delivery.last_error.is_some();
        let failures = failures_of(delivery);
        if let Some(age) = self.too_old(handler, event.date, failures).filter(|_| !is_wanted) {
            let why = format!("the event is older than {age:?}, and was not handled in time");
            let why = delivery
                .last_error
                .as_ref()
                .map_or(why.clone(), |last| format!("{why}; the last failure: {last}"));
            return self.give_up(handler, delivery, why, failures.saturating_add(1)).await;
        }
        let attempt = failures.saturating_add(1);
        let counted = if is_of_lost_node(delivery) {
            match self.count_first(handler, delivery, failures).await? {
                ControlFlow::Continue(counted) => Some(counted),
                ControlFlow::Break(end) => return Ok(end),
            }
        } else {
            None
        };
        let delivery = counted.as_ref().unwrap_or(delivery);
        let date = event.date;
        let mut ctx = HandlerContext {
            executor: &self.executor,
            handler: handler.name,
            principal: None,
            trace_parent: event.trace_parent.clone(),
            mark: Some(self.shard.mark(delivery).map_err(misfit)?),
            lost: false,
            shard: self.shard.identifier(),
            remote: RemoteStore {
                calls: &self.remote_calls,
                delivery,
                handler: handler.name,
                aliases: &handler.options.aliases,
                clock: &self.clock,
            },
            needs_operator: false,
        };
        let handling = handler.handle(&mut ctx, event, attempt, self.shard.identifier());
        let handling = AssertUnwindSafe(handling).catch_unwind();
        let handled = tokio::time::timeout(handler.options.timeout, handling).await;
        let (is_marked, is_lost, is_last) = (ctx.mark.is_none(), ctx.lost, ctx.needs_operator);
        let why = match handled {
            _ if is_lost => return Ok(End::Lost),
            Ok(Ok(Ok(()))) if is_marked => None,
            Ok(Ok(Ok(()))) => return Ok(End::Done(Box::new(delivery.clone()))),
            Ok(Ok(Err(error))) => Some(failure::of_error(&*error)),
            Ok(Err(panic)) => Some(failure::of_panic(&*panic)),
            Err(_) => Some(format!("did not end within {:?}", handler.options.timeout)),
        };
        match why {
            None => {
                handler.count(self.shard.identifier(), |counts| counts.handled += 1);
                Ok(End::Handled)
            }
            Some(why) if is_marked => {
                tracing::warn!(handler = handler.name, error = %why, "a handler failed after its last action had committed; its event is handled");
                handler.count(self.shard.identifier(), |counts| counts.handled += 1);
                Ok(End::Handled)
            }
            Some(why) => self.fail(handler, delivery, why, attempt, date, is_last).await,
        }
    }

    /// Counts an attempt before its run, which may end the process. Breaks if there is none.
    async fn count_first(
        &self,
        handler: &Handler,
        delivery: &Stored<Delivery>,
        failures: u32,
    ) -> Result<ControlFlow<End, Stored<Delivery>>, EventsError> {
        if handler.options.max_attempts.is_some_and(|most| failures >= most) {
            let why = delivery.last_error.clone().unwrap_or_default();
            return self.give_up(handler, delivery, why, failures).await.map(ControlFlow::Break);
        }
        let counted = delivery.clone().apply(|row| row.attempts = i64::from(failures) + 1);
        match self.deliveries.update(counted).await.map_err(EventsError::from) {
            Ok(counted) => Ok(ControlFlow::Continue(counted)),
            Err(error) if error.is_stale() => Ok(ControlFlow::Break(End::Lost)),
            Err(error) => Err(error),
        }
    }

    /// The subscriptions at this moment, if the handler does not want one of these events: they say what
    /// becomes of it. `None` also if they cannot be read.
    pub(crate) async fn subscriptions_for<'e>(
        &self,
        handler: &Handler,
        events: impl IntoIterator<Item = &'e StoredEvent>,
    ) -> Option<Arc<Subscriptions>> {
        if events.into_iter().all(|event| handler.wants(event.kind())) {
            return None;
        }
        let failed = |error: &EventsError| {
            tracing::warn!(handler = handler.name, %error, "what other processes want could not be read");
        };
        self.registrar.present(self.executor.deliveries()).await.inspect_err(failed).ok()
    }

    /// Lets a delivery wait for another process, without counting an attempt.
    pub(crate) async fn leave(
        &self,
        delivery: &Stored<Delivery>,
        date: DateTime<Utc>,
    ) -> Result<End, EventsError> {
        let now = self.clock.now();
        let pause = left_for((now - date).to_std().unwrap_or_default());
        let until = now + pause;
        let is_left = release_until(&self.deliveries, delivery.clone(), until).await?;
        Ok(if is_left { End::Left { pause, until } } else { End::Lost })
    }

    /// The age at which the handler gives events up, if one of this date that has failed so many times
    /// has reached it.
    fn too_old(&self, handler: &Handler, date: DateTime<Utc>, failures: u32) -> Option<Duration> {
        let age = (self.clock.now() - date).to_std().unwrap_or_default();
        handler.options.age_to_give_up(failures).filter(|longest| age > *longest)
    }

    /// Stores a failure: the delivery is tried again, or given up. `is_last`: no further run helps.
    pub(crate) async fn fail(
        &self,
        handler: &Handler,
        delivery: &Stored<Delivery>,
        why: String,
        attempt: u32,
        date: DateTime<Utc>,
        is_last: bool,
    ) -> Result<End, EventsError> {
        handler.count(self.shard.identifier(), |counts| counts.failed += 1);
        tracing::warn!(handler = handler.name, event = %delivery.event_id, attempt, error = %why, "a handler failed");
        let options = &handler.options;
        // The time after the run counts: it may have taken long.
        let is_last = is_last
            || options.max_attempts.is_some_and(|most| attempt >= most)
            || self.too_old(handler, date, attempt).is_some();
        if is_last {
            return self.give_up(handler, delivery, why, attempt).await;
        }
        let now = self.clock.now();
        let until = now + options.retry.after(attempt, fastrand::f64());
        let change = delivery.clone().apply(|row| {
            (row.state, row.node, row.due) = (DeliveryState::Waiting, Uuid::nil(), until);
            row.attempts = i64::from(attempt);
            row.last_error = Some(failure::shorten(&why));
        });
        let is_kept = self.update(change).await?;
        Ok(if is_kept { End::Failed { until: Some(until) } } else { End::Lost })
    }

    /// Parks the delivery, or moves it to the dead letters.
    async fn give_up(
        &self,
        handler: &Handler,
        delivery: &Stored<Delivery>,
        why: String,
        attempts: u32,
    ) -> Result<End, EventsError> {
        let what = match handler.options.after_last_attempt {
            AfterLastAttempt::Park if handler.options.order == Order::None => {
                "an event is given up and parked until an operator retries or skips it"
            }
            AfterLastAttempt::Park => {
                "an event is given up and parked; later events of its model wait until an operator retries or skips it"
            }
            AfterLastAttempt::DeadLetter => {
                "an event is given up as a dead letter; later events of its model are handled"
            }
        };
        tracing::error!(
            handler = handler.name,
            event = %delivery.event_id,
            delivery = %delivery.id,
            model = %delivery.stream,
            attempts,
            error = %why,
            "{what}"
        );
        match handler.options.after_last_attempt {
            AfterLastAttempt::Park => {
                let change = delivery.clone().apply(|row| {
                    (row.state, row.node) = (DeliveryState::Parked, Uuid::nil());
                    row.attempts = i64::from(attempts);
                    row.last_error = Some(failure::shorten(&why));
                });
                let is_kept = self.update(change).await?;
                Ok(if is_kept { End::Failed { until: None } } else { End::Lost })
            }
            AfterLastAttempt::DeadLetter => {
                let error = failure::shorten(&why);
                let letter = DeadLetter::of(delivery, error, i64::from(attempts), self.clock.now());
                let moving = |transaction| async move {
                    self.deliveries.within(&transaction).erase(delivery).await?;
                    self.dead_letters.within(&transaction).add(New::new(letter, ())).await?;
                    Ok::<_, EventsError>(())
                };
                let moved = self.shard.transactions().in_transaction(moving).await;
                match moved.map_err(EventsError::from) {
                    Ok(()) => Ok(End::DeadLetter),
                    Err(error) if error.is_stale() => Ok(End::Lost),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// `false` if the delivery is not as it was read.
    async fn update(
        &self,
        change: ekbatan_core::domain::Changed<Delivery>,
    ) -> Result<bool, EventsError> {
        match self.deliveries.update(change).await.map_err(EventsError::from) {
            Ok(_) => Ok(true),
            Err(error) if error.is_stale() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether the last node of the delivery was lost. The run may have been what ended it.
fn is_of_lost_node(delivery: &Delivery) -> bool {
    delivery.last_error.as_deref().is_some_and(failure::is_of_lost_node)
}

/// How often the delivery has failed.
fn failures_of(delivery: &Delivery) -> u32 {
    u32::try_from(delivery.attempts).unwrap_or(u32::MAX)
}

fn misfit(error: ekbatan_core::domain::FieldError) -> EventsError {
    let kind = ekbatan_core::db::DbErrorKind::Decode;
    EventsError::Database(ekbatan_core::db::DbError::new(kind, error.to_string()))
}
