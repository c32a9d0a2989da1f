//! The span of a commit over shards: behaviour 32.

use ekbatan::action::{ErrorKind, RetryPolicy};
use ekbatan::prelude::*;
use support::Recorder;

use crate::actions::{Nothing, stage};
use crate::models::Account;
use crate::shards::{FIRST, SECOND, TestShards};

on_every_layout! {
    a_partial_commit_is_recorded_in_its_span,
    a_failure_before_any_commit_is_not_recorded_as_partial,
    a_complete_cross_shard_commit_is_recorded_in_its_span,
}

/// The fields about shards of the only commit.
fn shard_fields(recorder: &Recorder) -> Vec<(String, String)> {
    let fields = recorder.one("ekbatan.action.persist").fields.into_iter();
    fields.filter(|(name, _)| name.starts_with("ekbatan.shard.")).collect()
}

fn expected_fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    fields
        .iter()
        .map(|(name, value)| (format!("ekbatan.shard.{name}"), value.to_string()))
        .collect()
}

/// Changes the rows as they were read.
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
    let (recorder, _guard) = Recorder::start();
    let call = executor.execute(&action, Nothing {}).allow_cross_shard();
    let answer = call.retry(RetryPolicy::none()).await;
    (recorder, answer)
}

async fn a_partial_commit_is_recorded_in_its_span(t: &TestShards) {
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
    assert_eq!(shard_fields(&recorder), expected_fields(&expected));
}

async fn a_failure_before_any_commit_is_not_recorded_as_partial(t: &TestShards) {
    let accounts = t.three_accounts().await;
    t.on(FIRST).overtake(accounts[0].id).await;
    let (recorder, answer) = change_all(t, &accounts).await;
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::Stale);
    assert_eq!(shard_fields(&recorder), expected_fields(&[("cross_shard", "true")]));
}

async fn a_complete_cross_shard_commit_is_recorded_in_its_span(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let (recorder, answer) = change_all(t, &accounts).await;
    answer.unwrap();
    assert_eq!(shard_fields(&recorder), expected_fields(&[("cross_shard", "true")]));
    let now = t.accounts().get(accounts[1].id).await.unwrap();
    let (recorder, answer) = change_all(t, &[now]).await;
    answer.unwrap();
    assert_eq!(shard_fields(&recorder), []);
}
