//! Whether a handler is known, so that a name that is misspelt is not taken for one that has nothing to do.

use std::collections::BTreeSet;

use ekbatan::events::DeliveryFilter;

use crate::failure::Failure;
use crate::target::Target;

/// How many dead letters are looked at for the names of their handlers.
const LETTERS: usize = 1_000;

/// Fails if no shard has a subscription or a dead letter of the handler.
pub async fn check(target: &Target, handler: &str) -> Result<(), Failure> {
    let mut known = BTreeSet::new();
    for on in target.shards() {
        for of in [DeliveryFilter::dead_letters(handler), DeliveryFilter::settled_letters(handler)]
        {
            if on.operations.count(&of).await? > 0 {
                return Ok(());
            }
        }
        known.extend(on.operations.status().await?.into_iter().map(|of| of.handler));
        let letters = on.operations.dead_letters(LETTERS).await?;
        known.extend(letters.into_iter().map(|letter| letter.handler.clone()));
    }
    if known.contains(handler) {
        return Ok(());
    }
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
    let shards = target.names();
    Err(Failure::failed(format!(
        "there is no handler `{handler}` on shard {shards}; there are {known}"
    )))
}

/// Fails if no node has registered the handler on any shard, and nothing waits for it there.
pub async fn check_registered(target: &Target, handler: &str) -> Result<(), Failure> {
    for on in target.shards() {
        if on.operations.status().await?.iter().any(|of| of.handler == handler) {
            return Ok(());
        }
    }
    let shards = target.names();
    Err(Failure::failed(format!(
        "the handler `{handler}` has only dead letters on shard {shards}, and nothing to retire; `ekbatan events purge --handler {handler}` counts and deletes them"
    )))
}
