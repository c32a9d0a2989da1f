//! Every read.

use std::sync::Arc;

use futures_core::Stream;
use uuid::Uuid;

use super::page::Position;
use super::{Condition, Direction, Page, PageRequest, ReadError, Repository};
use crate::db::{Arg, DbError, Query, Syntax, TableError, TableInfo};
use crate::domain::{
    ColumnDef, Dates, Entity, EntityId, FieldError, RowReader, Stored, Value, ValueType,
};

/// How many rows a stream asks for at a time.
const STREAM_PAGE: usize = 500;

impl<T: Entity> Repository<T> {
    /// The row with this id; an error if there is none.
    pub async fn get(&self, id: T::Id) -> Result<Stored<T>, ReadError> {
        self.find(id).await?.ok_or(ReadError::NotFound { model: T::TABLE.model, id: id.uuid() })
    }

    /// The row with this id, if there is one.
    pub async fn find(&self, id: T::Id) -> Result<Option<Stored<T>>, ReadError> {
        let info = self.table().await?;
        let mut args = Vec::with_capacity(1);
        let by_id = || by_ids(self.syntax(), &info, &[id.uuid()], &mut Vec::new());
        let sql = info.by_id.get_or_init(|| self.select_sql(&info, &by_id(), "").into()).clone();
        args.push(Arg::One(ValueType::Uuid, Value::Uuid(id.uuid())));
        let mut rows = self.fetch(Query { sql, args, columns: info.table.columns.into() }).await?;
        rows.pop().map(stored).transpose()
    }

    /// Whether there is a row with this id.
    pub async fn exists(&self, id: T::Id) -> Result<bool, ReadError> {
        let info = self.table().await?;
        let mut args = Vec::new();
        let by_id = by_ids(self.syntax(), &info, &[id.uuid()], &mut args);
        self.exists_rendered(&info, by_id, args).await
    }

    /// The rows with these ids, each once, in no order; ids without a row are left out.
    pub async fn find_by_ids(&self, ids: &[T::Id]) -> Result<Vec<Stored<T>>, ReadError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let info = self.table().await?;
        let ids: Vec<Uuid> = ids.iter().map(EntityId::uuid).collect();
        let mut args = Vec::new();
        let by_id = by_ids(self.syntax(), &info, &ids, &mut args);
        self.select(&info, by_id, args, "").await
    }

    /// Every row. For more of them than fit the memory there is [`Repository::stream`].
    pub async fn find_all(&self) -> Result<Vec<Stored<T>>, ReadError> {
        self.find_where(Condition::all()).await
    }

    /// The rows that fulfil a condition.
    pub async fn find_where(&self, condition: Condition<T>) -> Result<Vec<Stored<T>>, ReadError> {
        let info = self.table().await?;
        let (filter, args) = self.render(&info, &condition)?;
        self.select(&info, filter, args, "").await
    }

    /// The one row that fulfils a condition, if there is one; several are an error.
    pub async fn find_one(&self, condition: Condition<T>) -> Result<Option<Stored<T>>, ReadError> {
        let info = self.table().await?;
        let (filter, args) = self.render(&info, &condition)?;
        let mut rows = self.select(&info, filter, args, " LIMIT 2").await?;
        if rows.len() > 1 {
            return Err(ReadError::NotUnique { model: T::TABLE.model });
        }
        Ok(rows.pop())
    }

    /// How many rows there are.
    pub async fn count(&self) -> Result<u64, ReadError> {
        self.count_where(Condition::all()).await
    }

    /// How many rows fulfil a condition.
    pub async fn count_where(&self, condition: Condition<T>) -> Result<u64, ReadError> {
        let info = self.table().await?;
        let (filter, args) = self.render(&info, &condition)?;
        let sql = format!(
            "SELECT count(*) FROM {}{}",
            self.syntax().table(T::TABLE),
            self.visible(&filter)
        );
        let rows = self
            .fetch(Query {
                sql: sql.into(),
                args,
                columns: vec![ColumnDef::new("count", ValueType::Int)].into(),
            })
            .await?;
        match rows.first().and_then(|row| row.first()) {
            Some(Value::Int(count)) => Ok((*count).unsigned_abs()),
            _ => Ok(0),
        }
    }

    /// Whether a row fulfils a condition.
    pub async fn exists_where(&self, condition: Condition<T>) -> Result<bool, ReadError> {
        let info = self.table().await?;
        let (filter, args) = self.render(&info, &condition)?;
        self.exists_rendered(&info, filter, args).await
    }

    /// One page of rows, in order.
    pub async fn page(&self, request: PageRequest<T>) -> Result<Page<T>, ReadError> {
        let info = self.table().await?;
        let (filter, mut args) = self.render(&info, &request.condition)?;
        let syntax = self.syntax();
        let find = |name: &str| info.table.columns.iter().position(|column| column.name == name);
        let mut keys: Vec<(usize, ValueType)> = Vec::new();
        if let Some((name, ty)) = request.order {
            let unknown = || FieldError::new("the table has no such column").at(name);
            let position = find(name).ok_or_else(unknown).map_err(condition_error::<T>)?;
            keys.push((position, ty));
        }
        keys.push((0, ValueType::Uuid));
        let (operator, order) = match request.direction {
            Direction::Ascending => (">", "ASC"),
            Direction::Descending => ("<", "DESC"),
        };
        let operands: Vec<String> = keys
            .iter()
            .map(|(position, ty)| syntax.operand(&info.columns[*position], *ty))
            .collect();
        let mut filter = filter;
        if let Some(after) = &request.after {
            let values = after.key.iter().chain(std::iter::once(&after.id));
            let mut marks = Vec::new();
            for ((position, ty), value) in keys.iter().zip(values) {
                args.push(Arg::One(*ty, value.clone()));
                marks.push(syntax.argument(args.len(), *ty, &info.columns[*position]));
            }
            // A row comparison would compare without the columns' own collations.
            let beyond = match (&operands[..], &marks[..]) {
                ([key, id], [key_mark, id_mark]) => format!(
                    "({key} {operator} {key_mark} OR ({key} = {key_mark} AND {id} {operator} {id_mark}))"
                ),
                _ => format!("{} {operator} {}", operands[0], marks[0]),
            };
            filter = format!("({filter}) AND {beyond}");
        }
        let order: Vec<String> =
            operands.iter().map(|operand| format!("{operand} {order}")).collect();
        let tail = format!(" ORDER BY {} LIMIT {}", order.join(", "), request.size);
        let sql = self.select_sql(&info, &filter, &tail);
        let found =
            self.fetch(Query { sql: sql.into(), args, columns: info.table.columns.into() }).await?;
        let next = match found.last() {
            Some(last) if found.len() == request.size => Some(request.from(Position {
                key: (keys.len() == 2).then(|| last[keys[0].0].clone()),
                id: last[0].clone(),
            })),
            _ => None,
        };
        Ok(Page { rows: found.into_iter().map(stored).collect::<Result<_, _>>()?, next })
    }

    /// Every row that fulfils a condition, by id, a page at a time.
    ///
    /// No connection is held between pages, and so the stream is not one snapshot: a row
    /// that changes while the stream runs is seen as it is when its page is read.
    pub fn stream(
        &self,
        condition: Condition<T>,
    ) -> impl Stream<Item = Result<Stored<T>, ReadError>> + Send + 'static {
        let repository = self.clone();
        let first = Some(PageRequest::first(STREAM_PAGE).filter(condition));
        let state = (repository, first, Vec::new().into_iter());
        futures_util::stream::try_unfold(state, |(repository, mut next, mut rows)| async move {
            loop {
                if let Some(row) = rows.next() {
                    return Ok(Some((row, (repository, next, rows))));
                }
                let Some(request) = next.take() else { return Ok(None) };
                let page = repository.page(request).await?;
                rows = page.rows.into_iter();
                next = page.next;
            }
        })
    }

    /// What the database says about the table.
    pub(super) async fn table(&self) -> Result<Arc<TableInfo>, TableError> {
        match &self.within {
            Some(transaction) => transaction.table(T::TABLE).await,
            None => self.database.table(T::TABLE).await,
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

    /// The filter, and with it what hides deleted rows.
    fn visible(&self, filter: &str) -> String {
        match T::TABLE.state {
            Some(state) => {
                let state = self.syntax().quote(T::TABLE.columns[state].name);
                format!(" WHERE ({filter}) AND {state} <> 'DELETED'")
            }
            None => format!(" WHERE {filter}"),
        }
    }

    fn select_sql(&self, info: &TableInfo, filter: &str, tail: &str) -> String {
        let columns: Vec<String> =
            info.columns.iter().map(|column| self.syntax().quote(&column.name)).collect();
        format!(
            "SELECT {} FROM {}{}{tail}",
            columns.join(", "),
            self.syntax().table(T::TABLE),
            self.visible(filter)
        )
    }

    async fn select(
        &self,
        info: &TableInfo,
        filter: String,
        args: Vec<Arg>,
        tail: &str,
    ) -> Result<Vec<Stored<T>>, ReadError> {
        let sql = self.select_sql(info, &filter, tail);
        let rows =
            self.fetch(Query { sql: sql.into(), args, columns: info.table.columns.into() }).await?;
        rows.into_iter().map(stored).collect()
    }

    async fn exists_rendered(
        &self,
        _: &TableInfo,
        filter: String,
        args: Vec<Arg>,
    ) -> Result<bool, ReadError> {
        let sql = format!(
            "SELECT 1 FROM {}{} LIMIT 1",
            self.syntax().table(T::TABLE),
            self.visible(&filter)
        );
        // PostgreSQL answers a bare 1 as int4, which an integer column may be.
        let rows = self
            .fetch(Query {
                sql: sql.into(),
                args,
                columns: vec![ColumnDef::new("one", ValueType::Int)].into(),
            })
            .await?;
        Ok(!rows.is_empty())
    }

    async fn fetch(&self, query: Query) -> Result<Vec<Vec<Value>>, DbError> {
        match &self.within {
            Some(transaction) => transaction.fetch(&query).await,
            None => self.database.fetch(&query, self.route, self.holder).await,
        }
    }
}

fn by_ids(syntax: &dyn Syntax, info: &TableInfo, ids: &[Uuid], args: &mut Vec<Arg>) -> String {
    let column = &info.columns[0];
    match ids {
        [id] => {
            args.push(Arg::One(ValueType::Uuid, Value::Uuid(*id)));
            format!(
                "{} = {}",
                syntax.quote(&column.name),
                syntax.argument(1, ValueType::Uuid, column)
            )
        }
        ids => {
            args.push(Arg::Many(ValueType::Uuid, ids.iter().copied().map(Value::Uuid).collect()));
            syntax.any(1, ValueType::Uuid, column)
        }
    }
}

fn condition_error<T: Entity>(source: FieldError) -> ReadError {
    ReadError::Condition { model: T::TABLE.model, source }
}

fn stored<T: Entity>(mut values: Vec<Value>) -> Result<Stored<T>, ReadError> {
    let id = match values.first() {
        Some(Value::Uuid(id)) => id.to_string(),
        _ => "without an id".to_owned(),
    };
    let mut row = RowReader::new(T::TABLE, &mut values);
    let mut read = || {
        let value = T::from_row(&mut row)?;
        let version = if T::TABLE.version.is_some() { row.read()? } else { 0 };
        let dates = match T::TABLE.dates {
            Some(_) => Some(Dates { created: row.read()?, updated: row.read()? }),
            None => None,
        };
        Ok(Stored { value, version, dates })
    };
    read().map_err(|source| ReadError::Row { model: T::TABLE.model, id, source })
}
