//! The deliveries that are due.
//!
//! Invariant: a question reads a part of the index on state, handler, priority and date, and
//! no more of it than it returns and passes over. So handlers do not wait for each other's
//! deliveries, however many there are.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::{Delivery, DeliveryState, SubscriptionRegistry};
use crate::clock::to_micros;
use crate::db::{Arg, Database, DbError, Query, TableInfo};
use crate::domain::{ColumnDef, Entity, State, Value, ValueType};
use crate::outbox::Priority;

const HOLDER: &str = "look for deliveries";

/// Deliveries that are looked for.
#[derive(Debug, Clone)]
pub struct WantedDue<'w> {
    /// In this state. New ones are due whatever the clock of the process says that committed them.
    pub state: DeliveryState,
    /// Of the handler with this stored name.
    pub handler: &'w str,
    /// Of this priority.
    pub priority: Priority,
    /// Of no stream among these.
    pub except: Vec<Uuid>,
    /// Due from this date on; `None` for all.
    pub from: Option<DateTime<Utc>>,
}

/// What is due on a shard.
#[derive(Debug)]
pub struct Due {
    /// The present generation of the subscriptions, read together with the deliveries; 0 if nothing was asked.
    pub generation: i64,
    /// For each question the ids of deliveries, the oldest first.
    pub deliveries: Vec<Vec<Uuid>>,
}

/// How many questions a statement has at most: SQLite takes no more than 500 parts of a union.
const AT_ONCE: usize = 400;

const COLUMNS: &[ColumnDef] =
    &[ColumnDef::new("id", ValueType::Uuid), ColumnDef::new("number", ValueType::Int)];

/// For each question, up to `most` deliveries.
pub(crate) async fn due(
    database: &Database,
    wanted: &[WantedDue<'_>],
    now: DateTime<Utc>,
    most: usize,
) -> Result<Due, DbError> {
    let table = database.table(Delivery::TABLE).await?;
    let mut due = Due { generation: 0, deliveries: vec![Vec::new(); wanted.len()] };
    for (wanted, found) in wanted.chunks(AT_ONCE).zip(due.deliveries.chunks_mut(AT_ONCE)) {
        let question = Question { database, table: &table, args: Vec::new() };
        let query = question.query(wanted, now, most)?;
        for row in database.look(&query, HOLDER).await? {
            let [Value::Uuid(id), Value::Int(number)] = row.as_slice() else { continue };
            if *id == SubscriptionRegistry::GENERATION.uuid() {
                due.generation = due.generation.max(*number);
            } else if let Some(of) = usize::try_from(*number).ok().and_then(|at| found.get_mut(at))
            {
                of.push(*id);
            }
        }
    }
    Ok(due)
}

struct Question<'d> {
    database: &'d Database,
    table: &'d TableInfo,
    args: Vec<Arg>,
}

impl Question<'_> {
    fn query(
        mut self,
        wanted: &[WantedDue<'_>],
        now: DateTime<Utc>,
        most: usize,
    ) -> Result<Query, DbError> {
        let syntax = self.database.driver.syntax();
        let (deliveries, registry) =
            (syntax.table(Delivery::TABLE), syntax.table(SubscriptionRegistry::TABLE));
        let generation = Value::Uuid(SubscriptionRegistry::GENERATION.uuid());
        self.args.push(Arg::One(ValueType::Uuid, generation));
        let mut sql = format!("SELECT id, version AS number FROM {registry} WHERE id = $1");
        for (number, WantedDue { state, handler, priority, except, from }) in
            wanted.iter().enumerate()
        {
            let name = Value::Text((*handler).to_owned());
            let of_handler = self.compare("handler", "=", name, ValueType::Text)?;
            // State and priority are literals: only so does a server know how many rows have them.
            let mut condition = format!(
                "state = '{}' AND {of_handler} AND priority = {}",
                state.as_str(),
                priority.number()
            );
            if *state != DeliveryState::New {
                let now = Value::Timestamp(to_micros(now));
                let is_due = self.compare("due", "<=", now, ValueType::Timestamp)?;
                let _ = write!(condition, " AND {is_due}");
            }
            if let Some(from) = from {
                let from = Value::Timestamp(to_micros(*from));
                let is_later = self.compare("due", ">=", from, ValueType::Timestamp)?;
                let _ = write!(condition, " AND {is_later}");
            }
            if !except.is_empty() {
                let of_stream = self.among("stream", except)?;
                let _ = write!(condition, " AND NOT ({of_stream})");
            }
            let _ = write!(
                sql,
                " UNION ALL SELECT id, {number} FROM (SELECT id FROM {deliveries} \
                 WHERE {condition} ORDER BY due LIMIT {most}) AS due"
            );
        }
        Ok(Query { sql: sql.into(), args: self.args, columns: COLUMNS.into() })
    }

    fn compare(&mut self, name: &str, operator: &str, value: Value, ty: ValueType) -> Condition {
        let (syntax, column) = (self.database.driver.syntax(), self.table.column(name)?);
        self.args.push(Arg::One(ty, value));
        let argument = syntax.argument(self.args.len(), ty, column);
        Ok(format!("{} {operator} {argument}", syntax.operand(column, ty)))
    }

    fn among(&mut self, name: &str, ids: &[Uuid]) -> Condition {
        let (syntax, column) = (self.database.driver.syntax(), self.table.column(name)?);
        self.args.push(Arg::Many(ValueType::Uuid, ids.iter().copied().map(Value::Uuid).collect()));
        Ok(syntax.any(self.args.len(), ValueType::Uuid, column))
    }
}

type Condition = Result<String, DbError>;
