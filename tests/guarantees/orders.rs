//! Orders and their lines, which refer to orders by a foreign key. The lines' table sorts before
//! the orders' table.

use ekbatan::action::{Budget, ErrorKind, RetryPolicy};
use ekbatan::config::DataSourceConfig;
use ekbatan::domain::New;
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use support::{Dialect, ScratchDatabase};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "orders", name = "Order")]
pub struct Order {
    pub id: Id<Order>,
    pub total: i64,
    pub state: OrderState,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, State)]
pub enum OrderState {
    Open,
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Entity)]
#[entity(table = "order_lines", name = "OrderLine")]
pub struct OrderLine {
    pub id: Id<OrderLine>,
    pub order_id: Id<Order>,
    pub state: OrderState,
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OrderError(#[from] pub ReadError);

/// Adds one to the totals of some orders, and a line to others.
pub struct Change;

#[derive(Serialize, Deserialize)]
pub struct Changes {
    pub totals: Vec<Id<Order>>,
    pub lines: Vec<Id<Order>>,
}

impl Action for Change {
    const NAME: &'static str = "orders.change";
    type Params = Changes;
    type Output = ();
    type Error = OrderError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        params: &Changes,
    ) -> Result<(), OrderError> {
        for id in &params.totals {
            let order = ctx.get(*id).await?.apply(|order| order.total += 1);
            ctx.plan().update(order);
        }
        for order_id in &params.lines {
            let (id, state) = (Id::new(), OrderState::Open);
            ctx.plan().add(New::new(OrderLine { id, order_id: *order_id, state }, ()));
        }
        Ok(())
    }
}

/// A database of orders for one test.
pub struct Orders {
    pub databases: Databases,
    pub executor: ActionExecutor,
    pub scratch: ScratchDatabase,
}

impl Orders {
    pub async fn new(dialect: Dialect) -> Self {
        let scratch = ScratchDatabase::create(dialect).await;
        let config = scratch.config();
        Self::on(scratch, config).await
    }

    /// On a database that exists, with this configuration.
    pub async fn with_config(config: DataSourceConfig) -> Self {
        Self::on(ScratchDatabase::at(&config.url), config).await
    }

    async fn on(scratch: ScratchDatabase, config: DataSourceConfig) -> Self {
        let databases = Databases::connect(&config.into()).await.unwrap();
        databases.migrate(&migrations(scratch.dialect)).await.unwrap();
        // Deadlocks are not retried, so that they fail a test.
        let stale = Budget::new(100_000).cap(std::time::Duration::from_millis(20));
        let executor = ActionExecutor::builder(&databases, "tests")
            .model::<Order>()
            .model::<OrderLine>()
            .retry(RetryPolicy::none().with(ErrorKind::Stale, stale))
            .build()
            .await
            .unwrap();
        Self { databases, executor, scratch }
    }

    /// Opens the same database a second time, as another process would.
    pub async fn open_again(&self) -> Self {
        Self::with_config(self.scratch.config()).await
    }

    /// Adds orders. Their ids ascend.
    pub async fn add(&self, count: usize) -> Vec<Stored<Order>> {
        let mut ids: Vec<Id<Order>> = (0..count).map(|_| Id::new()).collect();
        ids.sort_by_key(|id| id.uuid());
        let orders =
            ids.into_iter().map(|id| New::new(Order { id, total: 0, state: OrderState::Open }, ()));
        self.databases.repository().add_all(orders.collect::<Vec<_>>()).await.unwrap()
    }

    pub async fn change(
        &self,
        totals: &[Id<Order>],
        lines: &[Id<Order>],
    ) -> Result<(), ExecuteError<OrderError>> {
        let changes = Changes { totals: totals.to_vec(), lines: lines.to_vec() };
        self.executor.execute(&Change, changes).await
    }
}

fn migrations(dialect: Dialect) -> Migrations {
    let (id, options) = match dialect {
        Dialect::Sqlite => ("text", ""),
        Dialect::Postgres => ("uuid", ""),
        Dialect::MySql => ("char(36)", " CHARACTER SET ascii COLLATE ascii_bin"),
        Dialect::MariaDb => ("uuid", ""),
    };
    Migrations::none().script(
        1,
        "create_orders",
        format!(
            "CREATE TABLE orders (id {id} NOT NULL PRIMARY KEY, total bigint NOT NULL, \
             state varchar(24) NOT NULL, version bigint NOT NULL){options}; \
             CREATE TABLE order_lines (id {id} NOT NULL PRIMARY KEY, order_id {id} NOT NULL, \
             state varchar(24) NOT NULL, version bigint NOT NULL, CONSTRAINT line_order FOREIGN KEY (order_id) REFERENCES orders (id)){options};"
        ),
    )
}
