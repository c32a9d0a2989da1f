//! The commands that only read.

use chrono::Utc;
use ekbatan::action::Priority;
use ekbatan::db::DbErrorKind;
use ekbatan::events::{InterventionState, PendingDelivery};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::answer::{Answer, Row, time};
use crate::args::Most;
use crate::failure::Failure;
use crate::target::{OnShard, Target};

/// `as_json`: the answer is for programs, which get all handlers.
pub async fn status(target: &Target, as_json: bool) -> Result<Answer, Failure> {
    let now = Utc::now();
    let mut rows = Vec::new();
    for on in target.shards() {
        let lacks_deliveries = on.operations.lacks_deliveries().await?;
        for of in on.operations.status().await? {
            let state = match (of.is_unknown, of.is_retired, of.is_paused) {
                (true, ..) => "unknown",
                (_, true, _) => "retired",
                (_, _, true) => "paused",
                _ => "active",
            };
            // A handler that is gone and has nothing left says nothing to people.
            if !as_json && of.is_retired && of.pending + of.dead_letters + of.in_doubt == 0 {
                continue;
            }
            rows.push(Answer::row([
                ("shard", on.identifier().to_string().into()),
                ("handler", of.handler.into()),
                ("state", state.into()),
                ("pending", of.pending.into()),
                ("failing", of.failing.into()),
                ("parked", of.parked.into()),
                ("blocked", of.blocked.into()),
                ("dead_letters", of.dead_letters.into()),
                ("in_doubt", of.in_doubt.into()),
                ("undelivered", lacks_deliveries.into()),
                ("oldest", of.oldest.map_or(Value::Null, time)),
                ("oldest_seconds", of.oldest.map(|date| (now - date).num_seconds().max(0)).into()),
            ]));
        }
    }
    let columns = &[
        "shard",
        "handler",
        "state",
        "pending",
        "failing",
        "parked",
        "blocked",
        "dead_letters",
        "in_doubt",
        "undelivered",
        "oldest",
        "oldest_seconds",
    ];
    Ok(Answer::List {
        columns,
        rows,
        empty: "no handler has anything left; retired ones are not shown",
    })
}

pub async fn parked(target: &Target, most: Most) -> Result<Answer, Failure> {
    let mut rows = Vec::new();
    for on in target.shards() {
        let found = on.operations.parked(most.most).await?;
        rows.extend(found.into_iter().map(|delivery| pending(&on, delivery)));
    }
    let columns = &["shard", "id", "handler", "model_id", "version", "attempts", "error"];
    Ok(Answer::List { columns, rows, empty: "no event is parked" })
}

pub async fn failing(target: &Target, most: Most) -> Result<Answer, Failure> {
    let mut rows = Vec::new();
    for on in target.shards() {
        let found = on.operations.failing(most.most).await?;
        rows.extend(found.into_iter().map(|delivery| pending(&on, delivery)));
    }
    let columns = &["shard", "id", "handler", "model_id", "version", "attempts", "due", "error"];
    Ok(Answer::List { columns, rows, empty: "no event is failing" })
}

fn pending(on: &OnShard<'_>, delivery: PendingDelivery) -> Row {
    Answer::row([
        ("shard", on.identifier().to_string().into()),
        ("id", delivery.id.to_string().into()),
        ("handler", delivery.handler.into()),
        ("model_id", delivery.stream.to_string().into()),
        ("version", delivery.model_version.into()),
        ("event_id", delivery.event_id.to_string().into()),
        ("priority", priority(delivery.priority)),
        ("attempts", delivery.attempts.into()),
        ("due", time(delivery.due)),
        ("error", delivery.last_error.into()),
    ])
}

fn priority(of: Priority) -> Value {
    format!("{of:?}").to_lowercase().into()
}

pub async fn dead_letters(target: &Target, most: Most) -> Result<Answer, Failure> {
    let mut rows = Vec::new();
    for on in target.shards() {
        for letter in on.operations.dead_letters(most.most).await? {
            rows.push(Answer::row([
                ("shard", on.identifier().to_string().into()),
                ("id", letter.id.to_string().into()),
                ("handler", letter.handler.clone().into()),
                ("model_id", letter.stream.to_string().into()),
                ("version", letter.model_version.into()),
                ("event_id", letter.event_id.to_string().into()),
                ("attempts", letter.attempts.into()),
                ("died", time(letter.died)),
                ("error", letter.error.clone().into()),
            ]));
        }
    }
    let columns = &["shard", "id", "handler", "model_id", "version", "attempts", "died", "error"];
    Ok(Answer::List { columns, rows, empty: "there is no dead letter that nobody has settled" })
}

pub async fn log(target: &Target, most: Most) -> Result<Answer, Failure> {
    let mut rows = Vec::new();
    for on in target.shards() {
        for row in on.operations.interventions(most.most).await? {
            let is_done = row.state == InterventionState::Done;
            rows.push(Answer::row([
                ("shard", on.identifier().to_string().into()),
                ("started", time(row.started)),
                ("what", row.kind.name().into()),
                ("handler", row.handler.clone().into()),
                ("subject", row.subject.clone().into()),
                ("counted", row.counted.into()),
                ("done", row.done.into()),
                ("complete", is_done.into()),
                ("who", row.who.clone().into()),
                ("why", row.why.clone().into()),
            ]));
        }
    }
    let columns = &[
        "shard", "started", "what", "handler", "subject", "counted", "done", "complete", "who",
        "why",
    ];
    Ok(Answer::List { columns, rows, empty: "no intervention is stored" })
}

pub async fn look(target: &Target, id: Uuid) -> Result<Answer, Failure> {
    for on in target.shards() {
        let shard = ("shard", on.identifier().to_string().into());
        let (mut facts, event_id) = if let Some(of) = on.operations.delivery(id).await? {
            let facts = vec![
                shard,
                ("delivery", id.to_string().into()),
                ("handler", of.handler.into()),
                ("priority", priority(of.priority)),
                ("attempts", of.attempts.into()),
                ("due", time(of.due)),
                ("error", of.last_error.into()),
            ];
            (facts, of.event_id)
        } else if let Some(of) = on.operations.dead_letter(id).await? {
            let facts = vec![
                shard,
                ("dead_letter", id.to_string().into()),
                ("state", format!("{:?}", of.state).to_lowercase().into()),
                ("handler", of.handler.clone().into()),
                ("attempts", of.attempts.into()),
                ("died", time(of.died)),
                ("error", of.error.clone().into()),
                ("settled_by", of.settled_by.clone().into()),
                ("settled_why", of.settled_why.clone().into()),
            ];
            (facts, of.event_id)
        } else {
            continue;
        };
        facts.push(("event_id", event_id.to_string().into()));
        match on.shard.events(vec![event_id]).await.map(|mut found| found.pop()) {
            Ok(Some(event)) => facts.extend([
                ("event_type", event.event_type.into()),
                ("event_date", time(event.date)),
                ("model_type", event.model_type.into()),
                ("model_id", event.model_id.into()),
                ("model_version", event.model_version.into()),
                ("action", event.action_name.into()),
                ("action_id", event.action.0.to_string().into()),
                ("principal", event.principal.into()),
                ("trace_parent", event.trace_parent.into()),
                ("payload", serde_json::from_str(&event.payload).unwrap_or(json!(event.payload))),
            ]),
            Ok(None) => facts.push(("event_type", "the event was deleted".into())),
            Err(error) if error.kind() == DbErrorKind::Decode => {
                facts.push(("event", format!("cannot be read: {error}").into()));
            }
            Err(error) => return Err(error.into()),
        }
        return Ok(Answer::One(facts));
    }
    let shards = target.names();
    Err(Failure::failed(format!(
        "there is no delivery and no dead letter {id} on shard {shards}; a delivery that was handled is gone"
    )))
}
