//! The commands that change something.

use ekbatan::domain::{ShardIdentifier, Stored};
use ekbatan::events::{DeadLetter, DeadLetterState, DeliveryFilter, EventsError};
use serde_json::json;
use uuid::Uuid;

use crate::answer::Answer;
use crate::args::{Given, Operator, Selection};
use crate::failure::Failure;
use crate::filter::filter;
use crate::known;
use crate::target::{OnShard, Target};

/// Where parked events are listed.
const OF_PARKED: &str = "`ekbatan events parked` lists those that are";

pub async fn retry(target: &Target, id: Uuid, by: &Given) -> Result<Answer, Failure> {
    on_parked(target, id, async |on| on.operations.retry(id, &by.who, &by.why).await).await?;
    Ok(said(format!("{id} is tried again"), json!({ "retried": id })))
}

pub async fn skip(target: &Target, id: Uuid, by: &Given) -> Result<Answer, Failure> {
    on_parked(target, id, async |on| on.operations.skip(id, &by.who, &by.why).await).await?;
    Ok(said(format!("{id} is skipped; its model goes on"), json!({ "skipped": id })))
}

/// Does something with a parked delivery. If the id is that of a dead letter, the failure says so.
async fn on_parked(
    target: &Target,
    id: Uuid,
    work: impl AsyncFn(&OnShard<'_>) -> Result<(), EventsError>,
) -> Result<(), Failure> {
    let Err(failure) = target.on_one_shard(OF_PARKED, work).await else { return Ok(()) };
    for on in target.shards() {
        if let Ok(Some(letter)) = on.operations.dead_letter(id).await
            && letter.state == DeadLetterState::Dead
        {
            return Err(Failure::failed(format!(
                "{id} is a dead letter and not parked; `ekbatan events replay {id}` delivers it once more, and `ekbatan events dismiss {id}` settles it"
            )));
        }
    }
    Err(failure)
}

pub async fn dismiss(target: &Target, id: Uuid, by: &Given) -> Result<Answer, Failure> {
    on_its_shard(target, id, async |on, letter| {
        on.operations.dismiss(letter, &by.who, &by.why).await
    })
    .await?;
    Ok(said(format!("{id} is settled"), json!({ "dismissed": id })))
}

pub async fn replay_one(target: &Target, id: Uuid, by: &Given) -> Result<Answer, Failure> {
    on_its_shard(target, id, async |on, letter| {
        on.operations.replay(letter, &by.who, &by.why).await
    })
    .await?;
    Ok(said(format!("{id} is delivered once more"), json!({ "replayed": 1 })))
}

/// Does something with a dead letter that nobody has settled.
async fn on_its_shard(
    target: &Target,
    id: Uuid,
    work: impl AsyncFn(&OnShard<'_>, &Stored<DeadLetter>) -> Result<(), EventsError>,
) -> Result<(), Failure> {
    for on in target.shards() {
        let Some(letter) = on.operations.dead_letter(id).await? else { continue };
        return match work(&on, &letter).await {
            Err(error @ EventsError::NotFound { what: "dead letter", .. }) => {
                let (handler, model) = (&letter.handler, letter.stream);
                Err(Failure::failed(format!(
                    "{error}; `ekbatan events look {id}` shows who settled it, and `ekbatan events replay --handler {handler} --settled --model-id {model}` delivers the settled ones of its model"
                )))
            }
            done => Ok(done?),
        };
    }
    Err(no_letter(target, id))
}

fn no_letter(target: &Target, id: Uuid) -> Failure {
    let shards = target.names();
    Failure::failed(format!(
        "there is no dead letter {id} on shard {shards}; `ekbatan events dead-letters` lists them"
    ))
}

pub async fn replay(
    target: &Target,
    selection: Selection,
    yes: Option<u64>,
    operator: Operator,
) -> Result<Answer, Failure> {
    let filter = filter(selection)?;
    let Some((by, counts)) = confirmed(target, &filter, yes, operator).await? else {
        return counted(target, &filter, "replay").await;
    };
    let replaying = on_each(target, counts, async |on, count| {
        on.operations.replay_all(&filter, count, &by.who, &by.why).await
    });
    let done = replaying.await.map_err(|stopped| stopped.failure("replayed"))?;
    Ok(said(format!("replayed {done} {filter}"), json!({ "replayed": done })))
}

pub async fn purge(
    target: &Target,
    selection: Selection,
    yes: Option<u64>,
    operator: Operator,
) -> Result<Answer, Failure> {
    if selection.stored {
        return Err(Failure::usage("stored events are not purged; leave out --stored"));
    }
    let filter = filter(selection)?;
    let Some((by, counts)) = confirmed(target, &filter, yes, operator).await? else {
        return counted(target, &filter, "purge").await;
    };
    let purging = on_each(target, counts, async |on, count| {
        on.operations.purge(&filter, count, &by.who, &by.why).await
    });
    let done = purging.await.map_err(|stopped| stopped.failure("purged"))?;
    Ok(said(format!("deleted {done} {filter}"), json!({ "purged": done })))
}

/// Does something on each shard with the rows that were counted there, and returns how many these were.
async fn on_each(
    target: &Target,
    counts: Vec<u64>,
    work: impl AsyncFn(&OnShard<'_>, u64) -> Result<u64, EventsError>,
) -> Result<u64, Stopped> {
    let mut done = Vec::new();
    for (on, count) in target.shards().zip(counts) {
        match work(&on, count).await {
            Ok(count) => done.push((on.identifier(), count)),
            Err(error) => {
                // Another error may come after some of its rows were changed.
                let may_go_on = matches!(
                    error,
                    EventsError::Recount { .. }
                        | EventsError::TooMany { .. }
                        | EventsError::RetiredHandler { .. }
                );
                return Err(Stopped::new(target, done, on.identifier(), error, may_go_on));
            }
        }
    }
    Ok(done.into_iter().map(|(_, count)| count).sum())
}

/// Work on several shards that stopped at one of them.
struct Stopped {
    /// How many rows were changed on each shard before.
    done: Vec<(ShardIdentifier, u64)>,
    at: ShardIdentifier,
    error: EventsError,
    /// Whether the same may be done at that shard without a look at it.
    may_go_on: bool,
    not_begun: Vec<ShardIdentifier>,
}

impl Stopped {
    fn new(
        target: &Target,
        done: Vec<(ShardIdentifier, u64)>,
        at: ShardIdentifier,
        error: EventsError,
        may_go_on: bool,
    ) -> Self {
        let all = target.shards().map(|on| on.identifier());
        let not_begun = all.skip_while(|shard| *shard != at).skip(1).collect();
        Self { done, at, error, may_go_on, not_begun }
    }

    /// Says what became of each shard, so that nobody does it twice on those that are done.
    fn failure(self, did: &str) -> Failure {
        let Self { done, at, error, may_go_on, not_begun } = self;
        if may_go_on && done.is_empty() && not_begun.is_empty() {
            return error.into();
        }
        let how_far = if may_go_on {
            String::new()
        } else {
            format!(
                "; `ekbatan events log` says how many were {did} there, so look before you go on with it"
            )
        };
        let mut parts: Vec<String> =
            done.iter().map(|(shard, count)| format!("shard {shard}: {count} {did}")).collect();
        parts.push(format!("stopped at shard {at}: {error}{how_far}"));
        parts.extend(not_begun.iter().map(|shard| format!("shard {shard}: not begun")));
        let rest = std::iter::once(&at).filter(|_| may_go_on).chain(&not_begun);
        let go_on: Vec<String> = rest.map(|shard| format!("--shard {shard}")).collect();
        let mut message = parts.join("; ");
        if !go_on.is_empty() {
            message = format!("{message}. Go on with {}", go_on.join(", then "));
        }

        let done =
            done.iter().map(|(shard, count)| json!({ "shard": shard.to_string(), did: count }));
        let mut shards: Vec<_> = done.collect();
        shards.push(json!({ "shard": at.to_string(), "error": error.to_string() }));
        shards.extend(not_begun.iter().map(|shard| json!({ "shard": shard.to_string(), did: 0 })));
        Failure::failed(message).with("shards", json!(shards))
    }
}

/// The operator and the count of each shard, if somebody has confirmed their sum.
async fn confirmed(
    target: &Target,
    filter: &DeliveryFilter,
    yes: Option<u64>,
    operator: Operator,
) -> Result<Option<(Given, Vec<u64>)>, Failure> {
    let Some(yes) = yes else { return Ok(None) };
    let by = operator.given()?;
    let mut counts = Vec::new();
    for on in target.shards() {
        counts.push(on.operations.count(filter).await?);
    }
    let sum: u64 = counts.iter().sum();
    if sum == 0 {
        known::check(target, filter.handler()).await?;
    }
    if sum != yes {
        return Err(Failure::failed(format!(
            "there are {sum} {filter}, and --yes says {yes}; nothing was changed: count again by leaving out --yes"
        )));
    }
    Ok(Some((by, counts)))
}

/// Says how many rows a filter selects.
async fn counted(target: &Target, filter: &DeliveryFilter, verb: &str) -> Result<Answer, Failure> {
    let (mut sum, mut by_shard) = (0, Vec::new());
    for on in target.shards() {
        let count = on.operations.count(filter).await?;
        sum += count;
        by_shard.push(json!({ "shard": on.identifier().to_string(), "count": count }));
    }
    if sum == 0 {
        known::check(target, filter.handler()).await?;
    }
    let advice = match sum {
        0 => String::new(),
        _ => format!(". To {verb} them, add --yes {sum} --who NAME --why REASON"),
    };
    let sentence = format!("there are {sum} {filter}; nothing was changed{advice}");
    Ok(said(sentence, json!({ "count": sum, "shards": by_shard })))
}

pub async fn pause(target: &Target, handler: &str, by: &Given) -> Result<Answer, Failure> {
    each_that_knows(target, "paused", async |on| {
        on.operations.pause(handler, &by.who, &by.why).await.map(|()| 1)
    })
    .await?;
    let sentence =
        format!("`{handler}` is paused; nodes learn of it within a fifth of their lease");
    Ok(said(sentence, json!({ "paused": handler })))
}

pub async fn resume(target: &Target, handler: &str, by: &Given) -> Result<Answer, Failure> {
    each_that_knows(target, "resumed", async |on| {
        on.operations.resume(handler, &by.who, &by.why).await.map(|()| 1)
    })
    .await?;
    let sentence = format!("`{handler}` goes on; nodes learn of it within a fifth of their lease");
    Ok(said(sentence, json!({ "resumed": handler })))
}

pub async fn retire(
    target: &Target,
    handler: &str,
    yes: Option<u64>,
    operator: Operator,
) -> Result<Answer, Failure> {
    let mut pending = 0;
    for on in target.shards() {
        pending += on.operations.pending(handler).await?;
    }
    if pending == 0 {
        known::check(target, handler).await?;
        known::check_registered(target, handler).await?;
    }
    let Some(yes) = yes else {
        let sentence = format!(
            "`{handler}` has {pending} events that it has not handled; nothing was changed. To retire it, add --yes {pending} --who NAME --why REASON"
        );
        return Ok(said(sentence, json!({ "count": pending })));
    };
    let by = operator.given()?;
    if pending != yes {
        return Err(Failure::failed(format!(
            "`{handler}` has {pending} events that it has not handled, and --yes says {yes}; nothing was changed: count again by leaving out --yes"
        )));
    }
    let moved = each_that_knows(target, "moved", async |on| {
        on.operations.retire(handler, &by.who, &by.why).await
    })
    .await?;
    let sentence = format!(
        "`{handler}` is retired, and {moved} events moved to the dead letters. Processes that do not know it yet may add some for a few seconds; repeat the command then"
    );
    Ok(said(sentence, json!({ "retired": handler, "moved": moved })))
}

/// Does something on every shard that knows the handler, and returns the sum of what it counts. Fails if none does.
/// `work` must be safe to repeat on a shard.
async fn each_that_knows(
    target: &Target,
    did: &str,
    work: impl AsyncFn(&OnShard<'_>) -> Result<u64, EventsError>,
) -> Result<u64, Failure> {
    let (mut done, mut unknown) = (Vec::new(), None);
    for on in target.shards() {
        match work(&on).await {
            Ok(count) => done.push((on.identifier(), count)),
            Err(
                error @ (EventsError::UnknownHandler { .. } | EventsError::FormerHandler { .. }),
            ) => unknown = Some(error),
            Err(error) => {
                let stopped = Stopped::new(target, done, on.identifier(), error, true);
                return Err(stopped.failure(did));
            }
        }
    }
    match unknown {
        Some(error) if done.is_empty() => Err(error.into()),
        _ => Ok(done.into_iter().map(|(_, count)| count).sum()),
    }
}

fn said(sentence: String, facts: serde_json::Value) -> Answer {
    Answer::Said { sentence, facts }
}
