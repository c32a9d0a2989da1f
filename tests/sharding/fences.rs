//! Leases that are lost on one of several shards.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use ekbatan::action::{ErrorKind, Fence};
use ekbatan::db::{CommitError, Isolation, TransactionOptions};
use ekbatan::prelude::*;
use ekbatan::repository::PageRequest;
use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use support::{PlainConnection, until};
use tokio::sync::Mutex;

use crate::actions::{Failed, Nothing, Take, route};
use crate::models::Account;
use crate::shards::{FIRST, Layout, SECOND, THIRD, TestShards, executor_on, hold_writers};

on_every_layout! {
    a_held_lease_commits_on_every_shard,
    a_lease_that_lost_its_fence_on_one_shard_commits_on_none,
    a_later_lease_on_one_shard_during_perform_fences_off_all_shards,
    a_fence_lost_between_two_shards_is_a_partial_commit,
    a_first_read_raises_the_fence_only_on_its_shard,
    every_kind_of_read_fences_off_an_earlier_lease_on_its_shard,
}

fn lease(token: i64) -> Fence {
    Fence { key: "account".into(), token, remaining: Duration::from_secs(600) }
}

async fn a_held_lease_commits_on_every_shard(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    for token in [1, 1, 3] {
        let action = Take::default();
        let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
        call.fenced_by(&lease(token)).await.unwrap();
    }
    for account in &accounts {
        assert_eq!(t.accounts().get(account.id).await.unwrap().version(), 4);
    }
}

async fn a_lease_that_lost_its_fence_on_one_shard_commits_on_none(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let action = Take::default();
    // The later lease was used only on the third shard.
    executor.execute(&action, route(&accounts[2..])).fenced_by(&lease(2)).await.unwrap();
    forget_on_first(t).await;
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    match call.fenced_by(&lease(1)).await.unwrap_err() {
        ExecuteError::FenceLost { key, .. } => assert_eq!(key, "account"),
        other => panic!("{other:?}"),
    }
    assert_eq!(t.eventlog_counts("events").await, [0, 0, 1]);
    assert_eq!(t.eventlog_counts("cross_shard_parts").await, [0; 3]);
}

/// Runs a future in a task of its own: calls of the task that runs `perform` are refused.
fn beside(work: impl Future<Output = ()> + Send + 'static) -> BoxFuture<'static, ()> {
    async { tokio::spawn(work).await.unwrap() }.boxed()
}

/// Removes the fence from the first shard, so that only the third shard knows it.
async fn forget_on_first(t: &TestShards) {
    let first = t.on(FIRST);
    first.execute(&format!("DELETE FROM {}", first.eventlog("lock_fences"))).await;
}

async fn a_later_lease_on_one_shard_during_perform_fences_off_all_shards(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let (successor, other) = (executor_on(&t.open_again().await).await, accounts[2].clone());
    let action = Take::with(move |_| {
        let (successor, other) = (successor.clone(), other.clone());
        beside(async move {
            let call = Take::default();
            let call = successor.execute(&call, route(&[other])).fenced_by(&lease(2));
            call.await.unwrap();
        })
    });
    let others = [accounts[0].clone(), accounts[2].clone()];
    let call = executor.execute(&action, route(&others)).allow_cross_shard();
    let error = call.fenced_by(&lease(1)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FenceLost);
    assert_eq!(t.eventlog_counts("events").await, [0, 0, 1]);
}

/// The writers of the first shard are blocked while the fence on the second shard is lost, after
/// the action raised it for the last time.
async fn a_fence_lost_between_two_shards_is_a_partial_commit(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let held = Arc::new(Mutex::new(None));
    let url = t.on(FIRST).url.clone();
    let action = Take::with({
        let held = held.clone();
        let second_url = t.on(SECOND).url.clone();
        let forget = format!("DELETE FROM {}", t.on(SECOND).eventlog("lock_fences"));
        move |_| {
            let (held, url) = (held.clone(), url.clone());
            let (second_url, forget) = (second_url.clone(), forget.clone());
            async move {
                PlainConnection::connect(&second_url).await.execute(&forget).await;
                *held.lock().await = Some(hold_writers(&url).await);
            }
            .boxed()
        }
    });
    let call = executor.execute(&action, route(&accounts)).allow_cross_shard();
    let call = call.fenced_by(&lease(1)).into_future();
    let second = t.on(SECOND);
    let fences = second.eventlog("lock_fences");
    let falling = async {
        let raised = async || held.lock().await.is_some() && second.count(&fences).await == 1;
        until("the fence is raised on the second shard", raised).await;
        second.execute(&format!("UPDATE {fences} SET token = 9")).await;
        drop(held.lock().await.take());
    };
    match tokio::join!(call, falling).0.unwrap_err() {
        ExecuteError::PartlyCommitted { committed, failed, not_tried, source, .. } => {
            assert_eq!(
                (&committed[..], failed, &not_tried[..]),
                (&[FIRST][..], SECOND, &[THIRD][..])
            );
            assert!(matches!(source.unwrap(), CommitError::FenceLost(key) if key == "account"));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(t.eventlog_counts("events").await, [1, 0, 0]);
}

/// The ways to read a row without writing it.
#[derive(Debug, Clone, Copy)]
enum How {
    Get,
    Exists,
    FindByIds,
    FindWhere,
    FindWhereReachable,
    CountWhere,
    Page,
    Stream,
    Within,
}

/// Reads one account and changes nothing.
struct Look {
    account: ShardedId<Account>,
    how: How,
    databases: Databases,
}

impl Action for Look {
    const NAME: &'static str = "sharding.look";
    type Params = Nothing;
    type Output = usize;
    type Error = Failed;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<usize, Failed> {
        let (accounts, id) = (ctx.repository::<Account>(), self.account);
        let same = || Account::ID.eq(id);
        Ok(match self.how {
            How::Get => ctx.get(id).await.map(|_| 1)?,
            How::Exists => usize::from(accounts.exists(id).await?),
            How::FindByIds => accounts.find_by_ids(&[id]).await?.len(),
            How::FindWhere => accounts.find_where(same()).await?.len(),
            How::FindWhereReachable => accounts.find_where_reachable(same()).await?.rows.len(),
            How::CountWhere => accounts.count_where(same()).await? as usize,
            How::Page => accounts.page(PageRequest::first(5).filter(same())).await?.rows.len(),
            How::Stream => Box::pin(accounts.stream(same())).count().await,
            How::Within => {
                let transactions = self.databases.shard(SECOND).unwrap().transactions();
                let found = transactions
                    .in_transaction_with(TransactionOptions::default().read_only(), async |tx| {
                        accounts.within(&tx).find_where(same()).await
                    });
                found.await.unwrap().len()
            }
        })
    }
}

async fn a_first_read_raises_the_fence_only_on_its_shard(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let look = |account: usize, how| Look {
        account: accounts[account].id,
        how,
        databases: t.databases.clone(),
    };
    for (account, how, raised) in
        [(1, How::Get, [0, 1, 0]), (2, How::Exists, [0, 1, 1]), (0, How::FindWhere, [1, 1, 1])]
    {
        let look = look(account, how);
        let call = executor.execute(&look, Nothing {}).fenced_by(&lease(1));
        assert_eq!(call.await.unwrap(), 1);
        assert_eq!(t.eventlog_counts("lock_fences").await, raised, "{how:?}");
    }
}

/// The later lease reads the second shard and writes nothing on any shard.
async fn every_kind_of_read_fences_off_an_earlier_lease_on_its_shard(t: &TestShards) {
    let accounts = t.three_accounts().await;
    let executor = t.executor().await;
    let all = [
        How::Get,
        How::Exists,
        How::FindByIds,
        How::FindWhere,
        How::FindWhereReachable,
        How::CountWhere,
        How::Page,
        How::Stream,
        How::Within,
    ];
    for (token, how) in (1..).step_by(2).zip(all) {
        let (successor, account) = (executor.clone(), accounts[1].id);
        let databases = t.databases.clone();
        let overtaken = Take::with(move |_| {
            let look = Look { account, how, databases: databases.clone() };
            let successor = successor.clone();
            beside(async move {
                let call = successor.execute(&look, Nothing {}).fenced_by(&lease(token + 1));
                assert_eq!(call.await.unwrap(), 1, "{how:?}");
            })
        });
        let late = executor.execute(&overtaken, route(&accounts[1..2]));
        let late = late.fenced_by(&lease(token)).await;
        assert!(matches!(late, Err(ExecuteError::FenceLost { .. })), "{how:?}: {late:?}");
    }
    assert_eq!(t.accounts().get(accounts[1].id).await.unwrap().version(), 1);
}

/// Reads the version of an account in a transaction whose statements all see one state.
struct LookWithin {
    account: ShardedId<Account>,
    databases: Databases,
}

impl Action for LookWithin {
    const NAME: &'static str = "sharding.look-within";
    type Params = Nothing;
    type Output = i64;
    type Error = Failed;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<i64, Failed> {
        let accounts = ctx.repository::<Account>();
        let transactions = self.databases.shard(SECOND).unwrap().transactions();
        let options =
            TransactionOptions::default().isolation(Isolation::RepeatableRead).read_only();
        let found = transactions
            .in_transaction_with(options, async |tx| accounts.within(&tx).get(self.account).await);
        Ok(found.await.unwrap().version())
    }
}

/// The transaction has to ask for the columns of the table first, and the fence waits for a commit
/// that passed the one of the earlier lease.
#[tokio::test]
async fn a_transaction_sees_what_was_committed_before_its_fence_was_raised_on_postgres() {
    let t = TestShards::start(Layout::Postgres).await;
    let account = t.three_accounts().await[1].id;
    let executor = t.executor().await;
    let first = Look { account, how: How::Get, databases: t.databases.clone() };
    executor.execute(&first, Nothing {}).fenced_by(&lease(1)).await.unwrap();

    let second = t.on(SECOND);
    let mut committing = second.connect().await;
    committing.execute("BEGIN").await;
    committing.execute("SELECT FROM eventlog.lock_fences FOR SHARE").await;
    let look = LookWithin { account, databases: t.open_again().await };
    let call = executor.execute(&look, Nothing {}).fenced_by(&lease(2)).into_future();
    let earlier = async {
        until("the later lease raises its fence", async || second.has_blocked_writer().await).await;
        let overtake = format!("UPDATE accounts SET version = 2 WHERE id = '{account}'");
        committing.execute(&overtake).await;
        committing.execute("COMMIT").await;
    };
    assert_eq!(tokio::join!(call, earlier).0.unwrap(), 2);
}
