//! The web server: takes orders, and shows how far they are.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use ekbatan::prelude::*;
use serde::{Deserialize, Serialize};
use tokio::net::TcpListener;

use crate::intake::{AcceptOrder, IntakeError, NewOrder};
use crate::order::OrderState;
use crate::view::View;

/// What the server needs.
pub struct Site {
    pub executor: ActionExecutor,
    pub intake: AcceptOrder,
}

/// The answer to an order.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Answer {
    pub state: OrderState,
}

/// Serves until the task ends.
pub async fn serve(listener: TcpListener, site: Site) -> std::io::Result<()> {
    let router = Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/orders", post(accept))
        .route("/state", get(state))
        .with_state(Arc::new(site));
    axum::serve(listener, router).await
}

/// Stores an order. Sent again with the same id, it gets the same answer.
async fn accept(
    State(site): State<Arc<Site>>,
    Json(order): Json<NewOrder>,
) -> Result<Response, Refusal> {
    let (key, bank) = (format!("order:{}", order.id), order.bank.clone());
    let call = site.executor.execute(&site.intake, order).principal(bank);
    let state = call.idempotency_key(key).await.map_err(|error| refusal(&error))?;
    let status = match state {
        OrderState::RejectedCutoff => StatusCode::CONFLICT,
        _ => StatusCode::ACCEPTED,
    };
    Ok((status, Json(Answer { state })).into_response())
}

async fn state(State(site): State<Arc<Site>>) -> Result<Json<View>, Refusal> {
    View::read(site.executor.databases()).await.map(Json).map_err(|error| {
        tracing::warn!(%error, "the state was not read");
        (StatusCode::SERVICE_UNAVAILABLE, error.to_string())
    })
}

/// Why a request is refused.
type Refusal = (StatusCode, String);

/// The answer to an order that was not stored, as far as is known.
fn refusal(error: &ExecuteError<IntakeError>) -> Refusal {
    let status = match error {
        ExecuteError::Domain(IntakeError::NoWindow { .. }) => StatusCode::NOT_FOUND,
        ExecuteError::Domain(IntakeError::Amount(_)) => StatusCode::UNPROCESSABLE_ENTITY,
        // One id for two different orders.
        ExecuteError::KeyReused { .. } => StatusCode::UNPROCESSABLE_ENTITY,
        error => {
            tracing::warn!(%error, "an order got no answer");
            StatusCode::SERVICE_UNAVAILABLE
        }
    };
    (status, error.to_string())
}
