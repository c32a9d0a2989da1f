//! The parameters of an action, as they are stored.

use serde_json::Value as Json;

use super::{Action, PlanError};
use crate::domain::PayloadError;

/// Fails if the parameters are no JSON object.
pub(super) fn params_of<A: Action>(params: &A::Params) -> Result<Json, PlanError> {
    let name = A::NAME.to_owned();
    let json =
        serde_json::to_value(params).map_err(|source| PayloadError::Serialize { name, source })?;
    Ok(PayloadError::require_object(&format!("{}'s parameters", A::NAME), json)?)
}
