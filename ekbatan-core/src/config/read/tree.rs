//! The tree of values that figment merges: lookup, insertion, and how messages show a value.

use figment::value::{Dict, Num, Tag, Value};

use crate::config::key_path::Step;

/// The value at these steps.
pub(super) fn find<'a>(root: &'a Value, steps: &[Step]) -> Option<&'a Value> {
    steps.iter().try_fold(root, |value, step| match (value, step) {
        (Value::Dict(_, dict), Step::Key(key)) => dict.get(key),
        (Value::Array(_, items), Step::Index(index)) => items.get(*index),
        _ => None,
    })
}

/// Puts a value at these steps. An index beyond the end of a list is an error: the length of that
/// list.
pub(super) fn place(root: &mut Value, steps: &[Step], value: Value) -> Result<(), usize> {
    let Some((step, rest)) = steps.split_first() else {
        *root = value;
        return Ok(());
    };
    match step {
        Step::Key(key) => {
            if !matches!(root, Value::Dict(..)) {
                *root = Value::Dict(Tag::Default, Dict::new());
            }
            let Value::Dict(_, dict) = root else { return Ok(()) };
            // Insert only after the rest of the path was placed.
            let mut inner = dict.get(key).cloned().unwrap_or_else(|| Value::from(Dict::new()));
            place(&mut inner, rest, value)?;
            dict.insert(key.clone(), inner);
        }
        Step::Index(index) => {
            let mut items = match &*root {
                Value::Array(_, items) => items.clone(),
                _ => Vec::new(),
            };
            if *index > items.len() {
                return Err(items.len());
            }
            let mut inner = items.get(*index).cloned().unwrap_or_else(|| Value::from(Dict::new()));
            place(&mut inner, rest, value)?;
            if *index < items.len() {
                items[*index] = inner;
            } else {
                items.push(inner);
            }
            let tag = if let Value::Array(tag, _) = root { *tag } else { Tag::Default };
            *root = Value::Array(tag, items);
        }
    }
    Ok(())
}

/// The number, if it is whole. Figment has one variant for each width and sign.
pub(super) fn whole_number(number: Num) -> Option<i128> {
    number.to_i128().or_else(|| i128::try_from(number.to_u128()?).ok())
}

pub(super) fn written_number(number: Num) -> String {
    match (whole_number(number), number) {
        (Some(whole), _) => whole.to_string(),
        // With its point: `10.0` is not `10`.
        (None, Num::F32(fraction)) => format!("{fraction:?}"),
        (None, Num::F64(fraction)) => format!("{fraction:?}"),
        (None, _) => "a very large number".to_owned(),
    }
}

/// The kind of a value, for messages.
pub(super) fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::String(..) | Value::Char(..) => "a text",
        Value::Bool(..) => "a truth value",
        Value::Num(..) => "a number",
        Value::Empty(..) => "nothing",
        Value::Dict(..) => "a mapping",
        Value::Array(..) => "a list",
    }
}
