//! A row that an action only read must be unchanged when its plan commits, if the plan expects it.

use std::future::{IntoFuture, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use ekbatan::action::{ActionPlan, RetryPolicy};
use ekbatan::db::{Committed, RowRef};
use ekbatan::domain::New;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::{Dialect, PlainConnection};

use crate::bounded;
use crate::orders::{Order, OrderError, OrderState, Orders};
use crate::other_sessions::Observer;

on_every_database! {
    an_unchanged_expected_row_lets_the_plan_commit,
    a_changed_expected_row_makes_the_plan_stale,
    one_of_two_expected_versions_is_stale,
    a_plan_that_only_expects_rows_writes_nothing,
    a_row_of_the_plan_itself_needs_no_expectation,
    commits_of_two_processes_cannot_skew,
    a_row_that_is_expected_without_a_lock_must_be_unchanged,
}

mod on_servers {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        an_expected_row_is_locked_until_the_commit_ends,
        a_row_that_is_expected_without_a_lock_may_change_while_the_commit_goes_on,
    }
}

mod in_one_fold {
    use super::*;

    // One thread, so that both commits are queued before the lane takes them.
    support::on_every_database! {
        #[tokio::test]
        |dialect| dialect;
        of_two_commits_that_expect_what_the_other_changes_one_is_stale,
        a_row_may_change_after_a_commit_that_expects_it_unchanged,
    }
}

/// An action that runs a closure on the plan.
struct Stage<F>(F);

#[derive(Serialize, Deserialize)]
struct Nothing {}

impl<F: Fn(&mut ActionPlan) + Send + Sync> Action for Stage<F> {
    const NAME: &'static str = "orders.stage";
    type Params = Nothing;
    type Output = ();
    type Error = OrderError;

    async fn perform(&self, ctx: &mut ActionContext<'_>, _: &Nothing) -> Result<(), OrderError> {
        (self.0)(ctx.plan());
        Ok(())
    }
}

type Answer = Result<Committed, ExecuteError<OrderError>>;

/// Runs a closure on a plan once, without retries.
async fn stage(orders: &Orders, on: impl Fn(&mut ActionPlan) + Send + Sync) -> Answer {
    let (action, params) = (Stage(on), Nothing {});
    let call = orders.executor.execute(&action, params).retry(RetryPolicy::none());
    call.with_commit().await.map(|(_, committed)| committed.unwrap())
}

fn raise(order: &Stored<Order>) -> ekbatan::domain::Changed<Order> {
    order.clone().apply(|order| order.total += 1)
}

fn stale_rows(answer: Answer) -> Vec<RowRef> {
    match answer.unwrap_err() {
        ExecuteError::Stale { rows, .. } => rows,
        other => panic!("{other:?}"),
    }
}

async fn versions(orders: &Orders, of: &[Stored<Order>]) -> Vec<i64> {
    let mut versions = Vec::new();
    for order in of {
        versions
            .push(orders.databases.repository::<Order>().get(order.id).await.unwrap().version());
    }
    versions
}

async fn an_unchanged_expected_row_lets_the_plan_commit(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(3).await;
    let committed = stage(&orders, |plan| {
        plan.expect(&read[0]);
        plan.expect(&read[2]);
        plan.update(raise(&read[1]));
    });
    let committed = committed.await.unwrap();
    assert_eq!(versions(&orders, &read).await, [1, 2, 1]);
    if dialect != Dialect::Sqlite {
        assert_eq!(committed.round_trips, 1);
    }
}

async fn a_changed_expected_row_makes_the_plan_stale(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(2).await;
    orders.databases.repository().update(raise(&read[0])).await.unwrap();
    let events = orders.scratch.count_events().await;
    let answer = stage(&orders, |plan| {
        plan.expect(&read[0]);
        plan.update(raise(&read[1]));
    });
    let [stale] = stale_rows(answer.await).try_into().unwrap();
    let RowRef { model, id, expected_version, .. } = stale;
    assert_eq!((model, id, expected_version), ("Order", read[0].id.uuid(), 1));
    assert_eq!(versions(&orders, &read).await, [2, 1]);
    assert_eq!(orders.scratch.count_events().await, events);
}

async fn one_of_two_expected_versions_is_stale(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(2).await;
    let later = orders.databases.repository().update(raise(&read[0])).await.unwrap();
    let answer = stage(&orders, |plan| {
        plan.expect(&read[0]);
        plan.expect(&later);
        plan.update(raise(&read[1]));
    });
    assert_eq!(stale_rows(answer.await).len(), 1);
    assert_eq!(versions(&orders, &read).await, [2, 1]);
}

async fn a_plan_that_only_expects_rows_writes_nothing(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(2).await;
    let check = |plan: &mut ActionPlan| read.iter().for_each(|order| plan.expect(order));
    let events = orders.scratch.count_events().await;
    stage(&orders, check).await.unwrap();
    assert_eq!(orders.scratch.count_events().await, events);
    orders.databases.repository().update(raise(&read[1])).await.unwrap();
    assert_eq!(stale_rows(stage(&orders, check).await)[0].id, read[1].id.uuid());
}

async fn a_row_of_the_plan_itself_needs_no_expectation(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(1).await;
    stage(&orders, |plan| {
        plan.expect(&read[0]);
        let raised = plan.update(raise(&read[0]));
        plan.expect(&raised);
    })
    .await
    .unwrap();
    assert_eq!(versions(&orders, &read).await, [2]);
}

/// Sets one of two totals to 1 if both are 0.
async fn raise_one(orders: &Orders, ids: [Id<Order>; 2]) {
    loop {
        let repository = orders.databases.repository::<Order>();
        let (own, other) =
            (repository.get(ids[0]).await.unwrap(), repository.get(ids[1]).await.unwrap());
        if own.total + other.total > 0 {
            return;
        }
        let answer = stage(orders, |plan| {
            plan.expect(&other);
            plan.update(raise(&own));
        });
        match answer.await {
            Ok(_) => return,
            // A deadlock fails the test.
            Err(ExecuteError::Stale { .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}

async fn commits_of_two_processes_cannot_skew(dialect: Dialect) {
    let orders = Arc::new(Orders::new(dialect).await);
    let other_process = Arc::new(orders.open_again().await);
    for _ in 0..20 {
        let pair = orders.add(2).await;
        let (first, second) = (pair[0].id, pair[1].id);
        let (here, there) = (orders.clone(), other_process.clone());
        let one = tokio::spawn(async move { raise_one(&here, [first, second]).await });
        let two = tokio::spawn(async move { raise_one(&there, [second, first]).await });
        one.await.unwrap();
        two.await.unwrap();
        assert_eq!(versions(&orders, &pair).await.iter().sum::<i64>(), 3);
    }
}

async fn a_row_that_is_expected_without_a_lock_must_be_unchanged(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(3).await;
    let compare = |plan: &mut ActionPlan| {
        plan.expect_unlocked(&read[0]);
        plan.expect(&read[1]);
        plan.update(raise(&read[2]));
    };
    let committed = stage(&orders, compare).await.unwrap();
    assert_eq!(versions(&orders, &read).await, [1, 1, 2]);
    if dialect != Dialect::Sqlite {
        assert_eq!(committed.round_trips, 1);
    }
    orders.databases.repository().update(raise(&read[0])).await.unwrap();
    let answer = stage(&orders, |plan| {
        plan.expect_unlocked(&read[0]);
        plan.add(order(Id::new()));
    });
    assert_eq!(stale_rows(answer.await)[0].id, read[0].id.uuid());
    assert_eq!(orders.scratch.count("orders").await, 3);
}

fn order(id: Id<Order>) -> New<Order> {
    New::new(Order { id, total: 0, state: OrderState::Open }, ())
}

/// Runs `during`, as another process, while a commit that expects an order stands still: it waits
/// for a session that is adding the same order.
async fn during_a_commit(
    dialect: Dialect,
    expect: fn(&mut ActionPlan, &Stored<Order>),
    during: impl AsyncFnOnce(&Orders, &Stored<Order>, &mut PlainConnection),
) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(1).await.remove(0);
    // The commit waits for its row only for a while, in which a busy machine may not connect.
    let others = orders.open_again().await;
    let mut observer = Observer::connect(&orders.scratch.url).await;
    let (mut other, mut look) =
        (orders.scratch.connect().await, PlainConnection::connect(&orders.scratch.url).await);
    let id = Id::new();
    let add = format!("INSERT INTO orders VALUES ('{id}', 0, 'OPEN', 1)");
    other.execute("BEGIN").await;
    other.execute(&add).await;
    let committing = async {
        let answer = stage(&orders, |plan| {
            expect(plan, &read);
            plan.add(order(id));
        });
        answer.await.unwrap();
    };
    let look = async {
        bounded("the commit waits", observer.wait_for_blocked()).await;
        during(&others, &read, &mut look).await;
        other.execute("ROLLBACK").await;
    };
    tokio::join!(committing, look);
    assert_eq!(orders.scratch.count("orders").await, 2);
}

async fn an_expected_row_is_locked_until_the_commit_ends(dialect: Dialect) {
    let during = async |_: &Orders, read: &Stored<Order>, look: &mut PlainConnection| {
        let lock = format!("SELECT 1 FROM orders WHERE id = '{}' FOR UPDATE NOWAIT", read.id);
        look.try_execute(&lock).await.expect_err("it is locked");
    };
    during_a_commit(dialect, |plan, read| plan.expect(read), during).await;
}

async fn a_row_that_is_expected_without_a_lock_may_change_while_the_commit_goes_on(
    dialect: Dialect,
) {
    let during = async |others: &Orders, read: &Stored<Order>, _: &mut PlainConnection| {
        others.databases.repository().update(raise(read)).await.unwrap();
    };
    during_a_commit(dialect, |plan, read| plan.expect_unlocked(read), during).await;
}

/// Queues two calls one after the other, and returns their answers.
async fn queued_together(
    orders: &Orders,
    first: impl Fn(&mut ActionPlan) + Send + Sync,
    second: impl Fn(&mut ActionPlan) + Send + Sync,
) -> (Answer, Answer) {
    let mut first = Box::pin(stage(orders, first).into_future());
    let mut second = Box::pin(stage(orders, second).into_future());
    for call in [first.as_mut() as std::pin::Pin<&mut dyn Future<Output = Answer>>, second.as_mut()]
    {
        let mut call = call;
        let is_waiting = poll_fn(|cx| Poll::Ready(call.as_mut().poll(cx).is_pending())).await;
        assert!(is_waiting, "no lane runs meanwhile");
    }
    tokio::join!(first, second)
}

async fn of_two_commits_that_expect_what_the_other_changes_one_is_stale(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(2).await;
    let changing = |own: usize, other: usize| {
        let read = &read;
        move |plan: &mut ActionPlan| {
            plan.expect(&read[other]);
            plan.update(raise(&read[own]));
        }
    };
    let (first, second) = queued_together(&orders, changing(0, 1), changing(1, 0)).await;
    first.unwrap();
    assert_eq!(stale_rows(second)[0].id, read[0].id.uuid());
    assert_eq!(versions(&orders, &read).await, [2, 1]);
}

async fn a_row_may_change_after_a_commit_that_expects_it_unchanged(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let read = orders.add(2).await;
    let checking = |plan: &mut ActionPlan| {
        plan.expect(&read[0]);
        plan.update(raise(&read[1]));
    };
    let changing = |plan: &mut ActionPlan| {
        plan.update(raise(&read[0]));
    };
    let (first, second) = queued_together(&orders, checking, changing).await;
    assert_eq!((first.unwrap().folded, second.unwrap().folded), (2, 2));
    assert_eq!(versions(&orders, &read).await, [2, 2]);
}
