//! Conditions as values. The column gives the type, the dialect renders the SQL.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{BitAnd, BitOr, Not};

use super::bounds;
use super::connective::Connective;
use crate::db::{Arg, Syntax, TableInfo};
use crate::domain::{Comparable, Field, FieldError, Value, ValueType};

/// How deeply `&`, `|` and `!` may be nested. A deeper condition would overflow the stack of a thread, and
/// databases refuse it.
const MOST_LEVELS: usize = 100;

/// A column of `T` that holds an `F`. The derives make one per field: `Wallet::OWNER_ID`.
pub struct Column<T, F> {
    name: &'static str,
    of: PhantomData<fn() -> (T, F)>,
}

impl<T, F> Column<T, F> {
    /// The column of this name.
    pub const fn new(name: &'static str) -> Self {
        Self { name, of: PhantomData }
    }

    /// The name in the database.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<T, F> Clone for Column<T, F> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, F> Copy for Column<T, F> {}

impl<T, F> fmt::Debug for Column<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A condition on rows of `T`. Combine conditions with `&`, `|` and `!`:
///
/// ```
/// # use ekbatan_core::repository::{Column, Condition};
/// # struct Wallet;
/// # const CURRENCY: Column<Wallet, String> = Column::new("currency");
/// # const VERSION: Column<Wallet, i64> = Column::new("version");
/// let condition: Condition<Wallet> = CURRENCY.eq("EUR") & !VERSION.lt(2);
/// ```
pub struct Condition<T> {
    expression: Expression,
    /// How deeply the expression is nested.
    levels: usize,
    of: PhantomData<fn() -> T>,
}

#[derive(Clone)]
enum Expression {
    True,
    Compare(&'static str, &'static str, Result<Value, FieldError>),
    In(&'static str, ValueType, Result<Vec<Value>, FieldError>),
    Null(&'static str),
    UpToAny([&'static str; 3], Result<Vec<[Value; 3]>, FieldError>, usize),
    /// Flat, so that a chain of many terms is no deep tree.
    Joined(Connective, VecDeque<Expression>),
    Not(Box<Expression>),
    /// What was nested too deeply.
    TooDeep,
}

impl Expression {
    fn joined(self, connective: Connective, other: Self) -> Self {
        let terms = |expression: Self| match expression {
            Self::Joined(of, terms) if of == connective => terms,
            one => VecDeque::from([one]),
        };
        let (mut left, mut right) = (terms(self), terms(other));
        // The longer one stays where it is, so that a chain may grow at either end.
        if left.len() < right.len() {
            while let Some(term) = left.pop_back() {
                right.push_front(term);
            }
            return Self::Joined(connective, right);
        }
        left.append(&mut right);
        Self::Joined(connective, left)
    }
}

/// A value that a column of `F` can be compared with: anything that converts into an `F`.
#[diagnostic::on_unimplemented(
    message = "a column of `{F}` cannot be compared with a value of type `{Self}`",
    label = "does not convert into `{F}`",
    note = "give a column of an `Option` either an `Option`, as in `Some(value)` or `None`, or exactly the type that it holds, as in `\"x\".to_owned()`"
)]
pub trait Comparand<F> {
    /// The value as the column holds it.
    fn into_field(self) -> F;
}

#[diagnostic::do_not_recommend]
impl<F, V: Into<F>> Comparand<F> for V {
    fn into_field(self) -> F {
        self.into()
    }
}

// Each method has the bound, so that the compiler says why a column is not compared, and not that there is no
// method.
impl<T, F: Field> Column<T, F> {
    fn compare(self, operator: &'static str, value: impl Comparand<F>) -> Condition<T> {
        Condition::of(Expression::Compare(self.name, operator, value.into_field().to_value()))
    }

    /// Equal to `value`; `None` means null.
    pub fn eq(self, value: impl Comparand<F>) -> Condition<T>
    where
        F: Comparable,
    {
        match value.into_field().to_value() {
            Ok(Value::Null) => Condition::of(Expression::Null(self.name)),
            value => Condition::of(Expression::Compare(self.name, "=", value)),
        }
    }

    /// Not equal to `value`. As in SQL, a null is neither equal nor unequal to a value;
    /// `ne(None)` means not null.
    pub fn ne(self, value: impl Comparand<F>) -> Condition<T>
    where
        F: Comparable,
    {
        match value.into_field().to_value() {
            Ok(Value::Null) => !Condition::of(Expression::Null(self.name)),
            value => Condition::of(Expression::Compare(self.name, "<>", value)),
        }
    }

    /// Less than `value`.
    pub fn lt(self, value: impl Comparand<F>) -> Condition<T>
    where
        F: Comparable,
    {
        self.compare("<", value)
    }

    /// At most `value`.
    pub fn le(self, value: impl Comparand<F>) -> Condition<T>
    where
        F: Comparable,
    {
        self.compare("<=", value)
    }

    /// Greater than `value`.
    pub fn gt(self, value: impl Comparand<F>) -> Condition<T>
    where
        F: Comparable,
    {
        self.compare(">", value)
    }

    /// At least `value`.
    pub fn ge(self, value: impl Comparand<F>) -> Condition<T>
    where
        F: Comparable,
    {
        self.compare(">=", value)
    }

    /// One of `values`; false for all rows if `values` is empty. `None` among them means null.
    pub fn is_in<V: Comparand<F>>(self, values: impl IntoIterator<Item = V>) -> Condition<T>
    where
        F: Comparable,
    {
        let values: Result<Vec<Value>, FieldError> =
            values.into_iter().map(|value| value.into_field().to_value()).collect();
        let null = values.as_ref().is_ok_and(|values| values.iter().any(Value::is_null));
        let values = values.map(|mut values| {
            values.retain(|value| !value.is_null());
            values
        });
        let found = Condition::of(Expression::In(self.name, F::TYPE, values));
        // SQL's IN never matches null, and with a null in its list it is never false.
        if null { found | Condition::of(Expression::Null(self.name)) } else { found }
    }
}

impl<T, F: Field> Column<T, Option<F>> {
    /// Null.
    pub fn is_null(self) -> Condition<T> {
        Condition::of(Expression::Null(self.name))
    }
}

impl<T> Condition<T> {
    /// Every row.
    pub fn all() -> Self {
        Self::of(Expression::True)
    }

    /// True for rows for which some `(a, b, c)` of `bounds` has: first column = `a`, second = `b`, third <= `c`.
    /// If there are more than `most` such rows, it may be false for the others.
    #[doc(hidden)]
    pub fn up_to_any<A: Comparable, B: Comparable, C: Comparable>(
        columns: (Column<T, A>, Column<T, B>, Column<T, C>),
        bounds: impl IntoIterator<Item = (A, B, C)>,
        most: usize,
    ) -> Self {
        let bounds = bounds
            .into_iter()
            .map(|(a, b, c)| Ok([a.to_value()?, b.to_value()?, c.to_value()?]))
            .collect();
        let (a, b, c) = columns;
        Self::of(Expression::UpToAny([a.name, b.name, c.name], bounds, most))
    }

    fn of(expression: Expression) -> Self {
        Self { expression, levels: 0, of: PhantomData }
    }

    /// A condition of so many levels, or one that no read accepts if there are too many.
    fn nested(expression: Expression, levels: usize) -> Self {
        if levels > MOST_LEVELS {
            return Self::of(Expression::TooDeep);
        }
        Self { expression, levels, of: PhantomData }
    }

    fn joined(self, connective: Connective, other: Self) -> Self {
        let levels = |condition: &Self| match condition.expression {
            Expression::Joined(of, _) if of == connective => condition.levels,
            _ => condition.levels + 1,
        };
        let levels = levels(&self).max(levels(&other));
        Self::nested(self.expression.joined(connective, other.expression), levels)
    }

    /// Renders the SQL and appends the arguments to `args`.
    pub(super) fn render(
        &self,
        syntax: &dyn Syntax,
        table: &TableInfo,
        args: &mut Vec<Arg>,
    ) -> Result<String, FieldError> {
        render(&self.expression, syntax, table, args)
    }
}

fn render(
    expression: &Expression,
    syntax: &dyn Syntax,
    table: &TableInfo,
    args: &mut Vec<Arg>,
) -> Result<String, FieldError> {
    let find = |name: &'static str| {
        let position = table.table.columns.iter().position(|column| column.name == name);
        position
            .map(|position| (&table.columns[position], table.table.columns[position].ty))
            .ok_or_else(|| {
                FieldError::new(format!("`{}` has no such column", table.table.full_name()))
                    .at(name)
            })
    };
    Ok(match expression {
        Expression::True => "true".to_owned(),
        Expression::Compare(name, operator, value) => {
            let (column, ty) = find(name)?;
            args.push(Arg::One(ty, value.clone().map_err(|error| error.at(name))?));
            format!(
                "{} {operator} {}",
                syntax.operand(column, ty),
                syntax.argument(args.len(), ty, column)
            )
        }
        Expression::In(name, ty, values) => {
            let (column, _) = find(name)?;
            let values = values.clone().map_err(|error| error.at(name))?;
            if let Some(most) = syntax.longest_list(*ty).filter(|most| values.len() > *most) {
                let (count, ty) = (values.len(), ty.name());
                return Err(FieldError::new(format!(
                    "`is_in` has {count} values, and this database takes a list of {most} of type {ty} at most"
                ))
                .at(name));
            }
            args.push(Arg::Many(*ty, values));
            syntax.any(args.len(), *ty, column)
        }
        Expression::Null(name) => format!("{} IS NULL", syntax.quote(&find(name)?.0.name)),
        Expression::UpToAny([a, b, c], bounds, most) => {
            let bounds = bounds.as_ref().map_err(|error| error.clone().at(a))?;
            bounds::render([find(a)?, find(b)?, find(c)?], bounds, *most, syntax, table, args)
        }
        Expression::Joined(connective, terms) => {
            let terms: Result<Vec<String>, FieldError> =
                terms.iter().map(|term| render(term, syntax, table, args)).collect();
            connective.join(terms?)
        }
        Expression::Not(inner) => format!("NOT ({})", render(inner, syntax, table, args)?),
        Expression::TooDeep => {
            return Err(FieldError::new(format!(
                "`&`, `|` and `!` are nested more than {MOST_LEVELS} levels deep; a chain of one operator is one level"
            )));
        }
    })
}

impl<T> Clone for Condition<T> {
    fn clone(&self) -> Self {
        Self { expression: self.expression.clone(), levels: self.levels, of: PhantomData }
    }
}

impl<T> fmt::Debug for Condition<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Condition").finish_non_exhaustive()
    }
}

impl<T> BitAnd for Condition<T> {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        match (&self.expression, &other.expression) {
            (Expression::True, _) => other,
            (_, Expression::True) => self,
            _ => self.joined(Connective::And, other),
        }
    }
}

impl<T> BitOr for Condition<T> {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        self.joined(Connective::Or, other)
    }
}

impl<T> Not for Condition<T> {
    type Output = Self;

    fn not(self) -> Self {
        match self.expression {
            Expression::Not(inner) => Self::nested(*inner, self.levels - 1),
            expression => Self::nested(Expression::Not(Box::new(expression)), self.levels + 1),
        }
    }
}
