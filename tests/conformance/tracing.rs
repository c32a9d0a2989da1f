//! The spans of an execution: behaviours 29 to 33.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ekbatan::action::Budget;
use ekbatan::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id as SpanId, Record};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::actions::{Nothing, Refused, stage};
use crate::database::TestDatabase;
use crate::models::{ThingEvent, quiet, thing};

on_every_database! {
    perform_and_persist_are_children_of_execute,
    retries_are_counted_and_told_one_by_one,
    a_call_without_retries_counts_none,
    a_failure_marks_its_span,
    the_principal_is_shown_only_on_demand,
    actions_run_without_a_subscriber,
}

/// A span or event: its name, that of the span around it, and its fields.
#[derive(Debug, Clone, Default)]
struct Seen {
    name: String,
    parent: Option<String>,
    fields: BTreeMap<String, String>,
}

impl Seen {
    fn field(&self, name: &str) -> Option<&str> {
        self.fields.get(name).map(String::as_str)
    }
}

impl Visit for Seen {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.fields.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.fields.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

/// What was seen; a span with its id.
type Numbered = (Option<u64>, Seen);

/// Keeps the framework's own spans and events, in the order of their beginning.
#[derive(Clone, Default)]
struct Recorder {
    seen: Arc<Mutex<Vec<Numbered>>>,
}

impl Recorder {
    /// Records what this thread does, until the guard is dropped.
    fn install() -> (Self, DefaultGuard) {
        let recorder = Self::default();
        let subscriber = tracing_subscriber::registry().with(recorder.clone());
        (recorder, tracing::subscriber::set_default(subscriber))
    }

    fn of(&self, name: &str) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        seen.iter().map(|(_, seen)| seen.clone()).filter(|seen| seen.name == name).collect()
    }

    fn one(&self, name: &str) -> Seen {
        let mut found = self.of(name);
        assert_eq!(found.len(), 1, "{name}: {found:?}");
        found.remove(0)
    }
}

impl<S: tracing::Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &SpanId, context: Context<'_, S>) {
        let parent = context.span(id).and_then(|span| span.parent());
        let mut seen = Seen {
            name: attributes.metadata().name().to_owned(),
            parent: parent.map(|parent| parent.name().to_owned()),
            ..Seen::default()
        };
        attributes.record(&mut seen);
        self.seen.lock().unwrap().push((Some(id.into_u64()), seen));
    }

    fn on_record(&self, id: &SpanId, values: &Record<'_>, _: Context<'_, S>) {
        let mut all = self.seen.lock().unwrap();
        // An id may be used again once its span is closed.
        if let Some((_, seen)) = all.iter_mut().rev().find(|(of, _)| *of == Some(id.into_u64())) {
            values.record(seen);
        }
    }

    fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
        let mut seen = Seen {
            name: event.metadata().name().to_owned(),
            parent: context.event_span(event).map(|span| span.name().to_owned()),
            ..Seen::default()
        };
        event.record(&mut seen);
        self.seen.lock().unwrap().push((None, seen));
    }
}

const EXECUTE: &str = "ekbatan.action.execute";

async fn perform_and_persist_are_children_of_execute(db: &TestDatabase) {
    let executor = db.executor().await;
    let (recorder, _guard) = Recorder::install();
    let action = stage(|ctx| {
        tracing::info!(name: "inside", "performing");
        Ok(ctx.plan().add(New::new(thing("a"), [ThingEvent::Touched, ThingEvent::Touched])))
    });
    let call = executor.execute(&action, Nothing {});
    let id = call.action_id().to_string();
    call.await.unwrap();

    let execute = recorder.one(EXECUTE);
    assert_eq!(execute.parent, None);
    assert_eq!(execute.field("ekbatan.action.name"), Some("conformance.stage"));
    assert_eq!(execute.field("ekbatan.action.id"), Some(&*id));
    assert_eq!(execute.field("ekbatan.action.outcome"), Some("success"));
    assert_eq!(execute.field("ekbatan.action.error"), None);
    let perform = recorder.one("ekbatan.action.perform");
    assert_eq!(perform.parent.as_deref(), Some(EXECUTE));
    assert_eq!(recorder.one("inside").parent.as_deref(), Some("ekbatan.action.perform"));
    let persist = recorder.one("ekbatan.action.persist");
    assert_eq!(persist.parent.as_deref(), Some(EXECUTE));
    assert_eq!(persist.field("ekbatan.batch.size"), Some("1"));
    assert_eq!(persist.field("ekbatan.event.count"), Some("2"));
    assert_eq!(persist.field("ekbatan.commit.round_trips"), Some("1"));
}

async fn retries_are_counted_and_told_one_by_one(db: &TestDatabase) {
    let executor = db.executor().await;
    for (succeeds_at, retries, outcome) in [(3, 2, "success"), (9, 4, "error")] {
        let (recorder, _guard) = Recorder::install();
        let action = stage(|ctx| if ctx.attempt() < succeeds_at { Err(Refused) } else { Ok(()) });
        let budget = Budget::new(4).base(Duration::ZERO);
        let call = executor
            .execute(&action, Nothing {})
            .retry(RetryPolicy::none().with(ErrorKind::Domain, budget))
            .retry_if(|_| true);
        assert_eq!(call.await.is_ok(), outcome == "success");
        let execute = recorder.one(EXECUTE);
        assert_eq!(execute.field("ekbatan.action.retry.count"), Some(&*retries.to_string()));
        assert_eq!(execute.field("ekbatan.action.outcome"), Some(outcome));
        let events = recorder.of("retry");
        assert_eq!(events.len(), retries);
        assert!(events.iter().all(|event| event.parent.as_deref() == Some(EXECUTE)));
        assert_eq!(recorder.of("ekbatan.action.perform").len(), retries + 1);
    }
}

async fn a_call_without_retries_counts_none(db: &TestDatabase) {
    let executor = db.executor().await;
    let (recorder, _guard) = Recorder::install();
    executor.execute(&stage(|_| Ok(())), Nothing {}).await.unwrap();
    assert_eq!(recorder.one(EXECUTE).field("ekbatan.action.retry.count"), Some("0"));
    assert_eq!(recorder.of("retry").len(), 0);
}

async fn a_failure_marks_its_span(db: &TestDatabase) {
    db.things().add(quiet(thing("taken"))).await.unwrap();
    let executor = db.executor().await;
    for (refuses, kind) in [(true, "Domain"), (false, "Unique")] {
        let (recorder, _guard) = Recorder::install();
        let action = stage(|ctx| {
            ctx.plan().add(quiet(thing("taken")));
            if refuses { Err(Refused) } else { Ok(()) }
        });
        executor.execute(&action, Nothing {}).await.unwrap_err();
        let execute = recorder.one(EXECUTE);
        assert_eq!(execute.field("ekbatan.action.outcome"), Some("error"));
        assert_eq!(execute.field("ekbatan.action.error"), Some(kind));
        let persisted = recorder.of("ekbatan.action.persist").len();
        assert_eq!(persisted, usize::from(!refuses), "a refusal persists nothing");
    }
}

async fn the_principal_is_shown_only_on_demand(db: &TestDatabase) {
    for (shown, expected) in [(false, None), (true, Some("alice"))] {
        let executor =
            ActionExecutor::builder(&db.databases, "a").log_principal(shown).build().await.unwrap();
        let (recorder, _guard) = Recorder::install();
        executor.execute(&stage(|_| Ok(())), Nothing {}).principal("alice").await.unwrap();
        assert_eq!(recorder.one(EXECUTE).field("ekbatan.action.principal"), expected);
        let everything = format!("{:?}", recorder.seen.lock().unwrap());
        assert_eq!(everything.contains("alice"), shown);
    }
}

async fn actions_run_without_a_subscriber(db: &TestDatabase) {
    let executor = db.executor().await;
    let none = tracing::subscriber::NoSubscriber::default();
    let _guard = tracing::subscriber::set_default(none);
    let action = stage(|ctx| Ok(ctx.plan().add(quiet(thing("a")))));
    let stored = executor.execute(&action, Nothing {}).await.unwrap();
    assert_eq!(db.things().get(stored.id).await.unwrap(), stored);
}
