//! The barrier: whoever changes a row and then passes it sees all that was committed by those who had
//! found the row as it was.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ekbatan::db::{BarrierError, DbErrorKind};
use ekbatan::domain::New;
use ekbatan::prelude::*;
use ekbatan_testkit::PostgresServer;
use serde::{Deserialize, Serialize};
use support::{Dialect, PlainConnection, ScratchDatabase, soak, until};

use crate::bounded;
use crate::ledger::proxied;
use crate::orders::{Order, OrderError, OrderState, Orders};
use crate::other_sessions::Observer;

on_every_database! {
    no_order_is_added_behind_the_barrier,
    a_transaction_that_is_open_across_a_change_ends_before_the_barrier,
    a_barrier_within_a_transaction_is_refused,
}

mod of_two_callers {
    use super::*;

    on_every_database! {
        only postgres:
        a_caller_does_not_join_a_wait_that_has_begun,
        a_silent_server_is_not_waited_for_longer_than_allowed,
    }
}

mod on_servers {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        a_transaction_that_has_only_read_so_far_is_waited_for,
        a_commit_that_has_found_the_row_as_it_was_is_waited_for,
        transactions_that_begin_later_are_not_waited_for,
        one_that_writes_nothing_is_not_waited_for_longer_than_a_commit_may_take,
    }
}

/// The barrier of the only shard.
pub async fn barrier(orders: &Orders, longest: Duration) -> Result<(), BarrierError> {
    orders.databases.default_shard().transaction_barrier(longest).await
}

/// Passes the barrier, whatever that takes.
pub async fn pass(orders: &Orders) {
    bounded("the barrier", barrier(orders, Duration::MAX)).await.unwrap();
}

/// Asserts that the barrier is not passed because of a transaction that is named so.
pub async fn assert_held(orders: &Orders, by: &str) {
    let open = still_open(orders, Duration::from_millis(50)).await;
    assert!(open.iter().any(|open| open.starts_with(by)), "{by}: {open:?}");
}

/// The transactions that keep the barrier from being passed. On a busy machine a look may take longer than
/// it is given.
async fn still_open(orders: &Orders, longest: Duration) -> Vec<String> {
    loop {
        match barrier(orders, longest).await {
            Err(BarrierError::StillOpen { open, .. }) => return open,
            Err(BarrierError::Unlisted { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// How the transaction of a session is named.
async fn name(other: &mut PlainConnection) -> String {
    let own = match other {
        PlainConnection::MySql(_) => "connection_id()",
        _ => "pg_backend_pid()",
    };
    let id = other.select(&[own], "").await.remove(0).remove(0);
    format!("session {} ", id.unwrap())
}

async fn close(orders: &Orders, gate: Id<Order>) {
    let gates = orders.databases.repository::<Order>();
    let closed = gates.get(gate).await.unwrap().apply(|gate| gate.total = 1);
    gates.update(closed).await.unwrap();
}

/// Adds an order while the gate is open.
struct AddWhileOpen;

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Adding {
    gate: Id<Order>,
    order: Id<Order>,
}

impl Action for AddWhileOpen {
    const NAME: &'static str = "orders.add_while_open";
    type Params = Adding;
    type Output = bool;
    type Error = OrderError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        adding: &Adding,
    ) -> Result<bool, OrderError> {
        let gate = ctx.get(adding.gate).await?;
        if gate.total > 0 {
            return Ok(false);
        }
        ctx.plan().expect_unlocked(&gate);
        let order = Order { id: adding.order, total: 0, state: OrderState::Open };
        ctx.plan().add(New::new(order, ()));
        Ok(true)
    }
}

async fn add(orders: &Orders, gate: Id<Order>) -> bool {
    let adding = Adding { gate, order: Id::new() };
    orders.executor.execute(&AddWhileOpen, adding).await.unwrap()
}

async fn no_order_is_added_behind_the_barrier(dialect: Dialect) {
    let orders = Arc::new(Orders::new(dialect).await);
    let other_process = Arc::new(orders.open_again().await);
    for _ in 0..soak::rounds(5, 300) {
        let gate = orders.add(1).await[0].id;
        let adding = (0..16).map(|n| {
            let orders = if n % 2 == 0 { orders.clone() } else { other_process.clone() };
            tokio::spawn(async move {
                let mut added = 0;
                while add(&orders, gate).await {
                    added += 1;
                }
                added
            })
        });
        let adding: Vec<_> = adding.collect();
        let before = orders.scratch.count("orders").await;
        support::until("orders are added", async || {
            orders.scratch.count("orders").await >= before + 20
        })
        .await;
        close(&orders, gate).await;
        pass(&orders).await;
        let at_the_barrier = orders.scratch.count("orders").await;
        for adding in adding {
            assert!(adding.await.unwrap() < 1_000_000);
        }
        assert_eq!(orders.scratch.count("orders").await, at_the_barrier);
    }
}

/// An open transaction of somebody else.
async fn begin(orders: &Orders) -> PlainConnection {
    let mut other = orders.scratch.connect().await;
    let begin = if orders.scratch.dialect == Dialect::Sqlite { "BEGIN IMMEDIATE" } else { "BEGIN" };
    other.execute(begin).await;
    other
}

async fn insert(other: &mut PlainConnection) {
    let insert = format!("INSERT INTO orders VALUES ('{}', 0, 'OPEN', 1)", Id::<Order>::new());
    other.execute(&insert).await;
}

async fn a_transaction_that_is_open_across_a_change_ends_before_the_barrier(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let gate = orders.add(1).await[0].id;
    let mut other = begin(&orders).await;
    insert(&mut other).await;
    let end = async {
        if dialect == Dialect::Sqlite {
            // The change waits for its end.
            return other.execute("COMMIT").await;
        }
        let by = name(&mut other).await;
        assert_held(&orders, &by).await;
        other.execute("COMMIT").await;
    };
    if dialect == Dialect::Sqlite {
        tokio::join!(close(&orders, gate), end);
    } else {
        close(&orders, gate).await;
        end.await;
    }
    pass(&orders).await;
    assert_eq!(orders.scratch.count("orders").await, 2);
}

/// It has no id of a transaction yet, and gets one that is later than that of the change.
async fn a_transaction_that_has_only_read_so_far_is_waited_for(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let gate = orders.add(1).await[0].id;
    let mut other = begin(&orders).await;
    let found = other.select(&["total"], "FROM orders").await;
    assert_eq!(found, [[Some("0".to_owned())]]);
    close(&orders, gate).await;
    let by = name(&mut other).await;
    assert_held(&orders, &by).await;
    insert(&mut other).await;
    assert_held(&orders, &by).await;
    other.execute("COMMIT").await;
    pass(&orders).await;
    assert_eq!(orders.scratch.count("orders").await, 2);
}

async fn a_commit_that_has_found_the_row_as_it_was_is_waited_for(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let gate = orders.add(1).await[0].id;
    let adding = Adding { gate, order: Id::new() };
    // The commit waits for its row only for a while, in which a busy machine may not connect.
    let closer = orders.open_again().await;
    let mut observer = Observer::connect(&orders.scratch.url).await;
    let mut other = begin(&orders).await;
    let same = format!("INSERT INTO orders VALUES ('{}', 0, 'OPEN', 1)", adding.order);
    other.execute(&same).await;
    let added = orders.executor.execute(&AddWhileOpen, adding);
    let change = async {
        let by = bounded("the commit waits", observer.wait_for_blocked()).await;
        close(&closer, gate).await;
        assert_held(&closer, &format!("session {by} ")).await;
        other.execute("ROLLBACK").await;
        pass(&closer).await;
        closer.scratch.count("orders").await
    };
    let (added, at_the_barrier) = tokio::join!(async { added.await.unwrap() }, change);
    assert_eq!((added, at_the_barrier), (true, 2));
}

/// At every moment a transaction is open, and each ends.
async fn transactions_that_begin_later_are_not_waited_for(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    orders.add(1).await;
    let url = orders.scratch.url.clone();
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let relay = tokio::spawn(async move {
        let mut pair = [PlainConnection::connect(&url).await, PlainConnection::connect(&url).await];
        pair[0].execute("BEGIN").await;
        insert(&mut pair[0]).await;
        let mut turn = 0;
        while !*stopped.borrow_and_update() {
            let next = 1 - turn;
            pair[next].execute("BEGIN").await;
            insert(&mut pair[next]).await;
            pair[turn].execute("COMMIT").await;
            turn = next;
        }
    });
    pass(&orders).await;
    stop.send(true).unwrap();
    relay.await.unwrap();
}

async fn one_that_writes_nothing_is_not_waited_for_longer_than_a_commit_may_take(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    orders.add(1).await;
    // Nothing is committed with so short a timeout: a busy machine may take longer.
    let commit_timeout = Duration::from_millis(500);
    let orders = Orders::with_config(orders.scratch.config().commit_timeout(commit_timeout)).await;
    let (mut reader, mut writer) = (begin(&orders).await, begin(&orders).await);
    reader.select(&["total"], "FROM orders").await;
    insert(&mut writer).await;
    let (reading, writing) = (name(&mut reader).await, name(&mut writer).await);
    let began = Instant::now();
    // A look that takes too long leaves the names of those that were waited for before it.
    until("only the writer is waited for", async || {
        let open = still_open(&orders, commit_timeout * 3).await;
        let names = |name: &str| open.iter().any(|open| open.starts_with(name));
        assert!(names(&writing), "{open:?}");
        !names(&reading)
    })
    .await;
    writer.execute("COMMIT").await;
    pass(&orders).await;
    assert!(began.elapsed() >= commit_timeout * 4, "the reader was waited for");
    reader.execute("COMMIT").await;
}

async fn a_barrier_within_a_transaction_is_refused(dialect: Dialect) {
    let orders = Orders::new(dialect).await;
    let shard = orders.databases.default_shard();
    let transactions = shard.transactions();
    let refused = transactions.in_transaction(|_| async {
        Ok::<_, std::convert::Infallible>(shard.transaction_barrier(Duration::MAX).await)
    });
    match refused.await.unwrap() {
        Err(BarrierError::Database(error)) => {
            assert_eq!(error.kind(), DbErrorKind::OpenTransaction);
        }
        other => panic!("{other:?}"),
    }
}

/// What the one before has seen may be older than the call.
async fn a_caller_does_not_join_a_wait_that_has_begun(dialect: Dialect) {
    let orders = Arc::new(Orders::new(dialect).await);
    let mut before = begin(&orders).await;
    insert(&mut before).await;
    let first = tokio::spawn({
        let orders = orders.clone();
        async move { pass(&orders).await }
    });
    let looks = "FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%FROM pg_locks%' AND pid <> pg_backend_pid()";
    support::until("the first one has looked", async || {
        !orders.scratch.select(&["pid"], looks).await.is_empty()
    })
    .await;
    let mut later = begin(&orders).await;
    insert(&mut later).await;
    let mut second = Box::pin(barrier(&orders, Duration::MAX));
    assert!(is_waiting(second.as_mut()).await, "the first one waits");
    before.execute("COMMIT").await;
    first.await.unwrap();
    assert!(is_waiting(second.as_mut()).await, "a transaction is open that began before");
    later.execute("COMMIT").await;
    bounded("the second barrier", second).await.unwrap();
}

/// Neither by the caller that looks nor by the one behind it, which hears of no transaction that has ended
/// since.
async fn a_silent_server_is_not_waited_for_longer_than_allowed(dialect: Dialect) {
    let scratch = ScratchDatabase::create(dialect).await;
    let (through, proxy) = proxied(&scratch.url).await;
    let long = Duration::from_secs(600);
    let config = ScratchDatabase::config_of(&through).read_timeout(long).connection_timeout(long);
    let orders = Orders::with_config(config).await;
    let mut other = scratch.connect().await;
    other.execute("BEGIN").await;
    insert(&mut other).await;
    let by = name(&mut other).await;
    assert_held(&orders, &by).await;
    other.execute("COMMIT").await;
    pass(&orders).await;

    proxy.stall();
    let longest = Duration::from_secs(2);
    let mut first = Box::pin(barrier(&orders, Duration::MAX));
    assert!(is_waiting(first.as_mut()).await);
    let refused = |answer| matches!(answer, Err(BarrierError::Unlisted { .. }));
    assert!(refused(bounded("the second caller", barrier(&orders, longest)).await));
    drop(first);
    assert!(refused(bounded("the third caller", barrier(&orders, longest)).await));
    proxy.resume();
    pass(&orders).await;
}

async fn is_waiting<F: Future>(mut future: std::pin::Pin<&mut F>) -> bool {
    std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Each of them would look by itself.
#[tokio::test(flavor = "multi_thread")]
async fn callers_at_the_same_time_share_a_wait() {
    let server = PostgresServer::builder().setting("log_statement", "all").start().await.unwrap();
    let scratch = ScratchDatabase::at(&server.create_database().await.unwrap());
    let orders = Orders::with_config(scratch.config()).await;
    let mut other = begin(&orders).await;
    insert(&mut other).await;
    let before = server.log().await.unwrap().len();
    let passing = futures_util::future::join_all((0..100).map(|_| pass(&orders)));
    let end = async {
        let looks = async || {
            let log = server.log().await.unwrap();
            log[before..].matches("FROM pg_locks").count()
        };
        support::until("the first one has looked", async || looks().await > 0).await;
        other.execute("COMMIT").await;
        looks().await
    };
    let (_, looked) = tokio::join!(passing, end);
    let log = server.log().await.unwrap();
    let looks = log[before..].matches("FROM pg_locks").count() - looked;
    assert!(looks <= 4, "{looks} looks after the end of the transaction");
}
