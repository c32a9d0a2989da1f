//! Idempotency keys with several shards.

use std::future::IntoFuture;
use std::time::Duration;

use ekbatan::action::ErrorKind;
use ekbatan::db::ActionId;
use ekbatan::prelude::*;
use futures_util::FutureExt;
use futures_util::future::{join_all, select};
use support::{Dialect, until};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};

use crate::actions::{Nothing, Take, route, stage};
use crate::models::Account;
use crate::shards::{FIRST, SECOND, SHARDS, THIRD, TestShards, executor_on, key_at, overtake};

on_every_layout! {
    a_repeated_call_returns_its_output_from_any_shard,
    a_cross_shard_call_stores_its_key_on_its_home,
    a_repeated_partial_commit_returns_the_same_error_without_running,
    a_resolved_partial_commit_returns_its_stored_output,
    a_repeated_call_waits_for_a_commit_that_goes_on,
    a_repeated_call_ends_although_the_runtime_of_the_first_one_has_ended,
    calls_with_one_key_in_several_processes_commit_once,
}

async fn a_repeated_call_returns_its_output_from_any_shard(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    for (n, account) in accounts.iter().enumerate() {
        let key = format!("key {n}");
        let (action, route) = (Take::default(), route(std::slice::from_ref(account)));
        for executor in [&executor, &executor, &executor_on(&t.open_again().await).await] {
            let call = executor.execute(&action, route.clone()).idempotency_key(&*key);
            assert_eq!(call.await.unwrap(), 1);
        }
        assert_eq!(action.runs(), 1);
        assert_eq!(t.accounts().get(account.id).await.unwrap().version(), 2);
    }
    assert_eq!(t.eventlog_counts("idempotency_keys").await.iter().sum::<usize>(), 3);
}

async fn a_cross_shard_call_stores_its_key_on_its_home(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = Take::default();
    for (n, home) in SHARDS.into_iter().enumerate() {
        let now = [
            t.accounts().get(accounts[2].id).await.unwrap(),
            t.accounts().get(accounts[1].id).await.unwrap(),
        ];
        let key = key_at(&executor, home);
        for _ in 0..3 {
            let call = executor.execute(&action, route(&now)).allow_cross_shard();
            assert_eq!(call.idempotency_key(&*key).await.unwrap(), 1);
        }
        assert_eq!(action.runs() as usize, n + 1);
        let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
        let error = call.idempotency_key(key).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::KeyReused);
    }
    assert_eq!(t.eventlog_counts("idempotency_keys").await, [1; 3]);
    assert_eq!(t.eventlog_counts("events").await, [0, 3, 3]);
}

/// Takes from all three accounts and commits only on the first shard, the home of the key.
async fn commit_on_first_shard_only(
    t: &TestShards,
    executor: &ActionExecutor,
    accounts: &[Stored<Account>],
) -> ActionId {
    let second = t.on(SECOND);
    let (url, id) = (second.url.clone(), accounts[1].id);
    let action = Take::with(move |_| {
        let url = url.clone();
        async move { overtake(&url, id).await }.boxed()
    });
    let call = executor.execute(&action, route(accounts)).allow_cross_shard();
    let action = call.action_id();
    let error = call.idempotency_key(key_at(executor, FIRST)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PartlyCommitted);
    action
}

async fn a_repeated_partial_commit_returns_the_same_error_without_running(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let id = commit_on_first_shard_only(t, &executor, &accounts).await;
    let again = Take::default();
    // Calls that wait one after the other would take longer than the test waits.
    let other = executor_on(&t.open_again().await).await;
    let executors = std::iter::once(&other).chain(std::iter::repeat_n(&executor, 24));
    let calls = executors.map(|executor| {
        let call = executor.execute(&again, route(&accounts)).allow_cross_shard();
        call.idempotency_key(key_at(executor, FIRST)).into_future()
    });
    let answers = timeout(Duration::from_secs(60), join_all(calls)).await;
    for answer in answers.expect("they wait side by side") {
        match answer.unwrap_err() {
            ExecuteError::PartlyCommitted {
                action, committed, failed, not_tried, source, ..
            } => {
                assert_eq!((action, failed), (id, SECOND));
                assert_eq!((&committed[..], &not_tried[..]), (&[FIRST][..], &[THIRD][..]));
                assert!(source.is_none());
            }
            other => panic!("{other:?}"),
        }
    }
    // A deadline that is shorter than the wait for other processes hides nothing.
    let mut tries = 0..30;
    loop {
        let tried = tries.next().expect("the deadline hides the partial commit");
        let deadline = Duration::from_millis(400 + 80 * tried);
        let call = executor.execute(&again, route(&accounts)).allow_cross_shard();
        let call = call.idempotency_key(key_at(&executor, FIRST)).deadline(deadline);
        match call.await.unwrap_err().kind() {
            ErrorKind::PartlyCommitted => break,
            // On a slow machine the deadline passes within a question.
            kind => assert_eq!(kind, ErrorKind::Deadline),
        }
    }
    assert_eq!(again.runs(), 0);
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
}

async fn a_resolved_partial_commit_returns_its_stored_output(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let id = commit_on_first_shard_only(t, &executor, &accounts).await;
    t.databases.resolve_partial_commit(id).await.unwrap();
    let again = Take::default();
    let call = executor.execute(&again, route(&accounts)).allow_cross_shard();
    assert_eq!(call.idempotency_key(key_at(&executor, FIRST)).await.unwrap(), 1);
    assert_eq!(again.runs(), 0);
}

/// The caller of the first call goes away between two shards, as after a deadline.
async fn a_repeated_call_waits_for_a_commit_that_goes_on(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let other = executor_on(&t.open_again().await).await;
    // The home commits the key with its rows, or it has a claim only.
    for home in [FIRST, THIRD] {
        let (action, key) = (Take::default(), key_at(&executor, home));
        let held = t.on(SECOND).hold_writers().await;
        let [first, mut here, mut elsewhere] = [&executor, &executor, &other].map(|executor| {
            let call = executor.execute(&action, route(&accounts[..2])).allow_cross_shard();
            call.idempotency_key(&*key).into_future()
        });
        tokio::select! {
            biased;
            () = first_part(t) => {}
            answer = first => panic!("{answer:?}"),
        }
        let asked = Instant::now();
        let either = select(&mut here, &mut elsewhere);
        let is_pending = timeout(Duration::from_millis(300), either).await.is_err();
        // It cannot know for longer that the other process still commits.
        let patient = asked.elapsed() < Duration::from_secs(3);
        assert!(is_pending || !patient, "the first call still commits");
        drop(held);
        if is_pending {
            assert_eq!(here.await.unwrap(), 1);
            if patient {
                assert_eq!(elsewhere.await.unwrap(), 1);
            }
        }
        assert_eq!(action.runs(), 1);
        until("its records are removed", async || {
            t.eventlog_counts("cross_shard_parts").await == [0; 3]
        })
        .await;
    }
    assert_eq!(t.eventlog_counts("events").await, [2, 2, 0]);
}

/// The first call waits for the default shard when its runtime ends. Its repetition sends nothing there, but
/// settles what is left.
async fn a_repeated_call_ends_although_the_runtime_of_the_first_one_has_ended(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let config = t.config();
    let connecting = move || {
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let databases = runtime.block_on(Databases::connect(&config)).unwrap();
        (runtime, databases)
    };
    // A runtime must be started and ended on a thread that may block.
    let (runtime, databases) = spawn_blocking(connecting).await.unwrap();
    let executor = executor_on(&databases).await;
    let (key, both) = (key_at(&executor, SECOND), route(&accounts[..2]));
    let held = t.on(FIRST).hold_writers().await;
    let (calling, its_key, its_route) = (executor.clone(), key.clone(), both.clone());
    runtime.spawn(async move {
        let action = Take::default();
        let call = calling.execute(&action, its_route).allow_cross_shard();
        call.idempotency_key(its_key).await
    });
    until("the home of the key commits", async || {
        t.eventlog_counts("cross_shard_parts").await == [0, 1, 0]
    })
    .await;
    if t.on(FIRST).dialect != Dialect::Sqlite {
        until("the default shard is next", async || t.on(FIRST).has_blocked_writer().await).await;
    }
    spawn_blocking(move || drop(runtime)).await.unwrap();
    drop(held);
    let again = Take::default();
    let call = executor.execute(&again, both).allow_cross_shard().idempotency_key(key);
    let answer = timeout(Duration::from_secs(60), call.into_future()).await.expect("it ends");
    let kind = answer.as_ref().err().map(ExecuteError::kind);
    // Whether the second part was sent is up to the moment at which the runtime ended.
    assert!(matches!(kind, None | Some(ErrorKind::PartlyCommitted)), "{answer:?}");
    assert_eq!(again.runs(), 0);
}

/// Waits until only the first shard has committed.
async fn first_part(t: &TestShards) {
    until("the first shard commits", async || {
        t.eventlog_counts("cross_shard_parts").await == [1, 0, 0]
    })
    .await;
}

async fn calls_with_one_key_in_several_processes_commit_once(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let mut executors = Vec::new();
    for _ in 0..4 {
        executors.push(executor_on(&t.open_again().await).await);
    }
    let action = Take::default();
    let calls = executors.iter().map(|executor| {
        let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
        call.idempotency_key("key").into_future()
    });
    for answer in join_all(calls).await {
        match answer {
            Ok(_) => {}
            // On a slow machine the other process may take longer than it is waited for.
            Err(error) => assert_eq!(error.kind(), ErrorKind::PartlyCommitted, "{error}"),
        }
    }
    for account in &accounts {
        assert_eq!(t.accounts().get(account.id).await.unwrap().version(), 2);
    }
    assert_eq!(t.eventlog_counts("events").await, [1, 1, 1]);
    assert_eq!(t.eventlog_counts("idempotency_keys").await.iter().sum::<usize>(), 1);
    // No row becomes stale: only the key prevents a second commit.
    let counted = stage(|_| 7);
    let calls = executors
        .iter()
        .map(|executor| executor.execute(&counted, Nothing {}).idempotency_key("8").into_future());
    for answer in join_all(calls).await {
        assert_eq!(answer.unwrap(), 7);
    }
    assert_eq!(t.eventlog_counts("idempotency_keys").await.iter().sum::<usize>(), 2);
}
