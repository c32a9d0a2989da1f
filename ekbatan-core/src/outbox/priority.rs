//! The priority of an enqueued call.

use crate::domain::{Comparable, Field, FieldError, Value, ValueType};

/// Which of an action's enqueued calls begin first, if several are due.
///
/// ```
/// # use ekbatan_core::action::*;
/// # use serde::{Deserialize, Serialize};
/// # #[derive(Debug, Clone, Serialize, Deserialize)] pub struct Order { wallet: String }
/// # pub struct WriteReport;
/// # impl Action for WriteReport {
/// #     const NAME: &'static str = "WriteReport";
/// #     type Params = Order; type Output = (); type Error = std::convert::Infallible;
/// #     async fn perform(&self, _: &mut ActionContext<'_>, _: &Order) -> Result<(), Self::Error> { Ok(()) }
/// # }
/// # fn example(ctx: &mut ActionContext<'_>, of_a_customer: Order, of_the_month: Order) {
/// ctx.plan().enqueue(&WriteReport, of_a_customer).priority(Priority::High);
/// ctx.plan().enqueue(&WriteReport, of_the_month).priority(Priority::Low);
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Priority {
    /// Before all others.
    High,
    /// Before the low ones. Calls without a priority have this one.
    #[default]
    Normal,
    /// Only if no others are due.
    Low,
}

impl Priority {
    /// All priorities, in the order in which their calls begin.
    #[doc(hidden)]
    pub const ALL: [Self; 3] = [Self::High, Self::Normal, Self::Low];

    /// The position in [`ALL`](Self::ALL).
    #[doc(hidden)]
    pub fn position(self) -> usize {
        match self {
            Self::High => 0,
            Self::Normal => 1,
            Self::Low => 2,
        }
    }

    /// What is stored.
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::High => 1,
            Self::Normal => 0,
            Self::Low => -1,
        }
    }
}

impl Field for Priority {
    const TYPE: ValueType = ValueType::Int;

    fn to_value(&self) -> Result<Value, FieldError> {
        Ok(Value::Int(self.number()))
    }

    fn from_value(value: Value) -> Result<Self, FieldError> {
        match value {
            // Looks find these three numbers only. Another one that is read together with them is no error,
            // which would stop all of them.
            Value::Int(number) => Ok(match number.signum() {
                1 => Self::High,
                -1 => Self::Low,
                _ => Self::Normal,
            }),
            other => Err(FieldError::mismatch(Self::TYPE, &other)),
        }
    }
}

impl Comparable for Priority {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stored_is_read_again() {
        for (position, priority) in Priority::ALL.into_iter().enumerate() {
            assert_eq!(priority.position(), position);
            assert_eq!(Priority::from_value(priority.to_value().unwrap()), Ok(priority));
        }
        assert_eq!(Priority::from_value(Value::Int(2)), Ok(Priority::High));
    }
}
