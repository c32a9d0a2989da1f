//! The span of a commit over shards: behaviour 32.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use ekbatan::prelude::*;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id as SpanId, Record};
use tracing::subscriber::DefaultGuard;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

use crate::actions::{Nothing, stage};
use crate::models::Account;
use crate::shards::{FIRST, SECOND, TestShards};

on_every_layout! {
    a_partial_commit_is_told_in_its_span,
    a_failure_before_any_commit_is_no_partial_one,
    a_whole_commit_over_shards_is_told_as_one,
}

type Fields = BTreeMap<String, String>;

/// Keeps the fields of the spans of commits.
#[derive(Clone, Default)]
struct Recorder {
    seen: Arc<Mutex<Vec<(u64, Fields)>>>,
}

impl Recorder {
    /// Records what this thread does, until the guard is dropped.
    fn install() -> (Self, DefaultGuard) {
        let recorder = Self::default();
        let subscriber = tracing_subscriber::registry().with(recorder.clone());
        (recorder, tracing::subscriber::set_default(subscriber))
    }

    /// Of the only commit, what is told of shards.
    fn of_shards(&self) -> Vec<(String, String)> {
        let seen = self.seen.lock().unwrap();
        assert_eq!(seen.len(), 1, "{seen:?}");
        let fields = seen[0].1.clone().into_iter();
        fields.filter(|(name, _)| name.starts_with("ekbatan.shard.")).collect()
    }
}

struct Into<'f>(&'f mut Fields);

impl Visit for Into<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name().to_owned(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}

impl<S: tracing::Subscriber + for<'l> LookupSpan<'l>> Layer<S> for Recorder {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &SpanId, _: Context<'_, S>) {
        if attributes.metadata().name() == "ekbatan.action.persist" {
            let mut fields = Fields::new();
            attributes.record(&mut Into(&mut fields));
            self.seen.lock().unwrap().push((id.into_u64(), fields));
        }
    }

    fn on_record(&self, id: &SpanId, values: &Record<'_>, context: Context<'_, S>) {
        let name = context.span(id).map(|span| span.name());
        if name == Some("ekbatan.action.persist") {
            let mut seen = self.seen.lock().unwrap();
            if let Some((_, fields)) = seen.iter_mut().rev().find(|(of, _)| *of == id.into_u64()) {
                values.record(&mut Into(fields));
            }
        }
    }
}

fn told(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    fields
        .iter()
        .map(|(name, value)| (format!("ekbatan.shard.{name}"), value.to_string()))
        .collect()
}

/// Changes all three rows, as they were when they were read.
async fn change_all(
    t: &TestShards,
    accounts: &[Stored<Account>],
) -> (Recorder, Result<(), ExecuteError<crate::actions::Failed>>) {
    let executor = t.executor().await;
    let action = stage(|ctx| {
        for account in accounts.iter().cloned() {
            ctx.plan().update(account.apply(|account| account.rank = 1));
        }
    });
    let (recorder, _guard) = Recorder::install();
    let call = executor.execute(&action, Nothing {}).allow_cross_shard();
    let answer = call.retry(RetryPolicy::none()).await;
    (recorder, answer)
}

async fn a_partial_commit_is_told_in_its_span(t: &TestShards) {
    let accounts = t.three_accounts().await;
    t.on(SECOND).overtake(accounts[1].id).await;
    let (recorder, answer) = change_all(t, &accounts).await;
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::PartlyCommitted);
    let expected = [
        ("committed_shards", "0/0"),
        ("cross_shard", "true"),
        ("failed_shard", "0/1"),
        ("partial_commit_failure", "true"),
    ];
    assert_eq!(recorder.of_shards(), told(&expected));
}

async fn a_failure_before_any_commit_is_no_partial_one(t: &TestShards) {
    let accounts = t.three_accounts().await;
    t.on(FIRST).overtake(accounts[0].id).await;
    let (recorder, answer) = change_all(t, &accounts).await;
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(recorder.of_shards(), told(&[("cross_shard", "true")]));
}

async fn a_whole_commit_over_shards_is_told_as_one(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let (recorder, answer) = change_all(t, &accounts).await;
    answer.unwrap();
    assert_eq!(recorder.of_shards(), told(&[("cross_shard", "true")]));
    let now = t.accounts().get(accounts[1].id).await.unwrap();
    let (recorder, answer) = change_all(t, &[now]).await;
    answer.unwrap();
    assert_eq!(recorder.of_shards(), []);
}
