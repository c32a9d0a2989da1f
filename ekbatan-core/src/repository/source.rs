//! Reads from one database: a shard's primary, its replica, or an open transaction.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use uuid::Uuid;

use super::page::TextOrder;
use super::page_keys::PageKeys;
use super::{Condition, PageRequest, ReadError};
use crate::db::{
    Arg, Columns, CommitToken, Database, Query, Route, Syntax, TableInfo, Transaction,
};
use crate::domain::{
    ColumnDef, Dates, Entity, FieldError, RowReader, ShardIdentifier, Stored, Value, ValueType,
};
use crate::shard::Fencing;

/// The commit that a replica must have applied before it is read.
pub(super) struct After {
    pub(super) token: CommitToken,
    pub(super) patience: Duration,
}

/// Reads the rows of `T` from one database.
pub(super) struct Source<T> {
    pub(super) database: Arc<Database>,
    pub(super) within: Option<Transaction>,
    pub(super) fencing: Option<Arc<Fencing>>,
    pub(super) route: Route,
    pub(super) after: Option<Arc<After>>,
    pub(super) holder: &'static str,
    pub(super) of: PhantomData<fn() -> T>,
}

impl<T: Entity> Source<T> {
    pub(super) fn shard(&self) -> ShardIdentifier {
        self.database.shard
    }

    /// Reads that may see the same state share statements. A read that has to see a certain one
    /// goes by itself: that of a transaction, of a fence, or of a commit token.
    pub(super) async fn find(&self, id: Uuid) -> Result<Option<Stored<T>>, ReadError> {
        let info = self.table().await?;
        let row = if self.within.is_none() && self.fencing.is_none() && self.after.is_none() {
            self.database.find(&info, id, self.route, self.holder).await?
        } else {
            self.fetch_as(info.by_id(self.syntax(), id), Some(&info)).await?.pop()
        };
        row.map(stored).transpose()
    }

    pub(super) async fn exists(&self, id: Uuid) -> Result<bool, ReadError> {
        let info = self.table().await?;
        let (filter, args) = info.id_is(self.syntax(), id);
        self.any(&info, &filter, args).await
    }

    pub(super) async fn find_by_ids(&self, ids: &[Uuid]) -> Result<Vec<Stored<T>>, ReadError> {
        let info = self.table().await?;
        let rows = self.fetch(info.by_ids(self.syntax(), ids)).await?;
        rows.into_iter().map(stored).collect()
    }

    pub(super) async fn find_where(
        &self,
        condition: &Condition<T>,
        tail: &str,
    ) -> Result<Vec<Stored<T>>, ReadError> {
        let info = self.table().await?;
        let (filter, args) = self.render(&info, condition)?;
        let sql = info.select(self.syntax(), &filter, tail).into();
        let rows = self.fetch(Query { sql, args, columns: Columns::of(info.table) }).await?;
        rows.into_iter().map(stored).collect()
    }

    pub(super) async fn count_where(&self, condition: &Condition<T>) -> Result<u64, ReadError> {
        let info = self.table().await?;
        let (filter, args) = self.render(&info, condition)?;
        let table = self.syntax().table(T::TABLE);
        let visible = info.visible(self.syntax(), &filter);
        let sql = format!("SELECT count(*) FROM {table}{visible}");
        let columns = vec![ColumnDef::new("count", ValueType::Int)].into();
        let rows = self.fetch(Query { sql: sql.into(), args, columns }).await?;
        match rows.first().and_then(|row| row.first()) {
            Some(Value::Int(count)) => Ok((*count).unsigned_abs()),
            _ => Ok(0),
        }
    }

    pub(super) async fn exists_where(&self, condition: &Condition<T>) -> Result<bool, ReadError> {
        let info = self.table().await?;
        let (filter, args) = self.render(&info, condition)?;
        self.any(&info, &filter, args).await
    }

    /// The rows of one page.
    pub(super) async fn page(
        &self,
        request: &PageRequest<T>,
        texts: TextOrder,
    ) -> Result<Vec<Vec<Value>>, ReadError> {
        let info = self.table().await?;
        let (filter, mut args) = self.render(&info, &request.condition)?;
        let syntax = self.syntax();
        let sorting = request.sorting().map_err(condition_error::<T>)?;
        let keys = PageKeys::new(syntax, &info, &sorting, texts);
        let mut filter = filter;
        if let Some(position) = &request.after {
            filter = format!("({filter}) AND {}", keys.beyond(position, &mut args));
        }
        let tail = format!(" ORDER BY {} LIMIT {}", keys.order(), request.size);
        let sql = info.select(syntax, &filter, &tail).into();
        let query = Query { sql, args, columns: Columns::of(info.table) };
        let is_plain = self.within.is_none() && self.after.is_none() && self.fencing.is_none();
        if request.by_index && is_plain && self.route == Route::Primary {
            return Ok(self.database.look(&query, self.holder).await?);
        }
        self.fetch(query).await
    }

    /// The table as the database describes it. Within a transaction the fences are raised before it
    /// is asked anything: its first statement may fix the state that it sees, and a commit under an
    /// earlier lease must not come between that state and the fences.
    async fn table(&self) -> Result<Arc<TableInfo>, ReadError> {
        let Some(transaction) = &self.within else {
            return Ok(self.database.table(T::TABLE).await?);
        };
        if let Some(fencing) = &self.fencing {
            fencing.stand(&self.database, self.holder).await?;
        }
        Ok(transaction.table(T::TABLE).await?)
    }

    /// How pages of these databases are ordered, so that they can be merged.
    pub(super) fn order_of_texts(sources: &[Self]) -> TextOrder {
        match sources {
            [_] => TextOrder::OfDatabase,
            sources if sources.iter().all(|one| one.syntax().sorts_by_all_bytes()) => {
                TextOrder::Bytes
            }
            _ => TextOrder::FirstBytes,
        }
    }

    fn syntax(&self) -> &dyn Syntax {
        self.database.driver.syntax()
    }

    fn render(
        &self,
        info: &TableInfo,
        condition: &Condition<T>,
    ) -> Result<(String, Vec<Arg>), ReadError> {
        let mut args = Vec::new();
        let sql = condition.render(self.syntax(), info, &mut args).map_err(condition_error::<T>)?;
        Ok((sql, args))
    }

    async fn any(&self, info: &TableInfo, filter: &str, args: Vec<Arg>) -> Result<bool, ReadError> {
        let (table, visible) = (self.syntax().table(T::TABLE), info.visible(self.syntax(), filter));
        // PostgreSQL returns a bare 1 as int4, which decodes as an integer.
        let sql = format!("SELECT 1 FROM {table}{visible} LIMIT 1").into();
        let columns = vec![ColumnDef::new("one", ValueType::Int)].into();
        Ok(!self.fetch(Query { sql, args, columns }).await?.is_empty())
    }

    async fn fetch(&self, query: Query) -> Result<Vec<Vec<Value>>, ReadError> {
        self.fetch_as(query, None).await
    }

    /// `by_id_in` is the table if the query is its read by id.
    async fn fetch_as(
        &self,
        query: Query,
        by_id_in: Option<&TableInfo>,
    ) -> Result<Vec<Vec<Value>>, ReadError> {
        let (database, holder) = (&*self.database, self.holder);
        if let Some(transaction) = &self.within {
            return Ok(transaction.fetch(&query).await?);
        }
        if let Some(after) = &self.after
            && let Some(position) = after.token.position(self.shard())
        {
            return Ok(database.fetch_after(&query, position, after.patience, holder).await?);
        }
        match (self.route, &self.fencing) {
            (Route::Primary, Some(fencing)) => {
                Ok(fencing.fetch(database, &query, by_id_in, holder).await?)
            }
            // A read from a replica is not fenced: a replica may lag behind any fence.
            _ => Ok(database.fetch(&query, self.route, holder).await?),
        }
    }
}

fn condition_error<T: Entity>(source: FieldError) -> ReadError {
    ReadError::Condition { model: T::TABLE.model, source }
}

/// Converts a row to the user's type.
pub(super) fn stored<T: Entity>(mut values: Vec<Value>) -> Result<Stored<T>, ReadError> {
    let id = match values.first() {
        Some(Value::Uuid(id)) => id.to_string(),
        _ => "without an id".to_owned(),
    };
    let mut row = RowReader::new(T::TABLE, &mut values);
    let mut read = || {
        let value = T::from_row(&mut row)?;
        let version = match T::TABLE.version {
            Some(column) => stored_version(row.read()?)
                .map_err(|error| error.at(T::TABLE.columns[column].name))?,
            None => 0,
        };
        let dates = match T::TABLE.dates {
            Some(_) => Some(Dates { created: row.read()?, updated: row.read()? }),
            None => None,
        };
        Ok(Stored { value, version, dates })
    };
    read().map_err(|source| ReadError::Row { model: T::TABLE.model, id, source })
}

/// The version of a row, which another program may have written.
fn stored_version(version: i64) -> Result<i64, FieldError> {
    if version < 1 {
        return Err(FieldError::new(format!("the database holds {version}; versions start at 1")));
    }
    Ok(version)
}
