//! The commands for remote calls in doubt.

use ekbatan::events::RemoteCallState;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::answer::{Answer, time};
use crate::args::{Given, Most};
use crate::failure::Failure;
use crate::target::{OnShard, Target};

/// Where remote calls are listed.
const OF_CALLS: &str = "`ekbatan events in-doubt` lists them";

pub async fn in_doubt(target: &Target, most: Most) -> Result<Answer, Failure> {
    let mut rows = Vec::new();
    for on in target.shards() {
        for call in on.operations.unsettled_remote_calls(most.most).await? {
            let is_sent = call.state == RemoteCallState::Sent;
            rows.push(Answer::row([
                ("shard", on.identifier().to_string().into()),
                ("key", call.id.to_string().into()),
                ("handler", call.handler.clone().into()),
                ("name", call.name.clone().into()),
                ("event_id", call.event_id.to_string().into()),
                ("delivery", call.delivery.to_string().into()),
                ("requests", call.requests.into()),
                ("sent", time(call.sent)),
                ("state", if is_sent { "sent" } else { "in doubt" }.into()),
                ("error", call.error.clone().into()),
            ]));
        }
    }
    let columns = &["shard", "key", "handler", "name", "requests", "sent", "state", "error"];
    Ok(Answer::List { columns, rows, empty: "no remote call is in doubt" })
}

pub async fn happened(
    target: &Target,
    key: Uuid,
    outcome: &str,
    by: &Given,
) -> Result<Answer, Failure> {
    let outcome: Value = serde_json::from_str(outcome)
        .map_err(|error| Failure::usage(format!("--outcome is no JSON: {error}")))?;
    let settle = async |on: &OnShard<'_>| {
        on.operations.remote_call_happened(key, &outcome, &by.who, &by.why).await
    };
    target.on_one_shard(OF_CALLS, settle).await?;
    let sentence = format!("the remote call {key} is settled: it happened");
    Ok(Answer::Said { sentence, facts: json!({ "happened": key }) })
}

pub async fn did_not_happen(target: &Target, key: Uuid, by: &Given) -> Result<Answer, Failure> {
    let settle = async |on: &OnShard<'_>| {
        on.operations.remote_call_did_not_happen(key, &by.who, &by.why).await
    };
    target.on_one_shard(OF_CALLS, settle).await?;
    let sentence = format!("the remote call {key} is settled: it did not happen");
    Ok(Answer::Said { sentence, facts: json!({ "did_not_happen": key }) })
}
