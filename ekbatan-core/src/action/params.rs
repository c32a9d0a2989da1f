//! The parameters of an action, as they are stored.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use super::{Action, PlanError};
use crate::domain::{PayloadError, check_nulls_and_depth};

/// Whether a type has one value, as `()` has, by which an action says that it has no parameters. They are
/// stored as an empty object, because readers of the outbox expect one.
const fn is_unit<P>() -> bool {
    size_of::<P>() == 0
}

/// Reads parameters as they were stored.
pub fn read_params<P: DeserializeOwned>(text: &str) -> Result<P, serde_json::Error> {
    serde_json::from_str(text).or_else(|error| match text {
        "{}" if is_unit::<P>() => serde_json::from_str("null").map_err(|_| error),
        _ => Err(error),
    })
}

/// Fails if the parameters are no JSON object.
pub(super) fn params_of<A: Action>(params: &A::Params) -> Result<Json, PlanError> {
    let name = A::NAME.to_owned();
    let json =
        serde_json::to_value(params).map_err(|source| PayloadError::Serialize { name, source })?;
    let json =
        if json.is_null() && is_unit::<A::Params>() { Json::Object(Map::new()) } else { json };
    Ok(PayloadError::require_object(|| format!("the parameters of `{}`", A::NAME), json)?)
}

/// The parameters of a call that a node reads later. Fails if they are nested too deeply, or hold a NaN.
pub(super) fn stored_params<A: Action>(params: &A::Params) -> Result<String, PlanError> {
    let text = params_of::<A>(params)?.to_string();
    let unreadable = |source| PayloadError::Serialize { name: A::NAME.to_owned(), source };
    check_nulls_and_depth::<A::Params>(&text).map_err(unreadable)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_object_is_read_as_no_parameters() {
        #[derive(Debug, serde::Deserialize)]
        struct Named {
            _amount: i64,
        }
        #[derive(Debug, serde::Deserialize)]
        struct Nothing {}

        for text in ["{}", "null"] {
            read_params::<()>(text).unwrap();
        }
        read_params::<Nothing>("{}").unwrap();
        read_params::<()>(r#"{"amount":1}"#).unwrap_err();
        read_params::<Named>("{}").unwrap_err();
        // What is not there is not an empty object.
        assert_eq!(read_params::<Option<i64>>("null").unwrap(), None);
        read_params::<Option<i64>>("{}").unwrap_err();
    }
}
