//! The parameters of an action, as they are stored.

use serde_json::Value as Json;

use super::{Action, PlanError};
use crate::domain::{PayloadError, check_nulls_and_depth};

/// Fails if the parameters are no JSON object.
pub(super) fn params_of<A: Action>(params: &A::Params) -> Result<Json, PlanError> {
    let name = A::NAME.to_owned();
    let json =
        serde_json::to_value(params).map_err(|source| PayloadError::Serialize { name, source })?;
    Ok(PayloadError::require_object(&format!("{}'s parameters", A::NAME), json)?)
}

/// The parameters of a call that a node reads later. Fails if they are nested too deeply, or hold a NaN.
pub(super) fn stored_params<A: Action>(params: &A::Params) -> Result<String, PlanError> {
    let text = params_of::<A>(params)?.to_string();
    let unreadable = |source| PayloadError::Serialize { name: A::NAME.to_owned(), source };
    check_nulls_and_depth::<A::Params>(&text).map_err(unreadable)?;
    Ok(text)
}
