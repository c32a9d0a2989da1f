//! Listing the keys that are held. The server has no list of them, so the listing walks all keys of
//! its database, in steps that are short for the server.

use std::collections::HashSet;

use ekbatan_lock::{BackendError, Holder};
use uuid::Uuid;

use crate::answer::{answered, left};
use crate::commands::Commands;
use crate::names::RedisNames;
use crate::scripts::{ScriptCall, Scripts};

/// About how many keys the server looks at in one step.
const STEP: usize = 1_000;

/// A stored lease, its remaining milliseconds, and the time; the answer of the script `inspect`.
pub(crate) type FoundLease = Option<(String, i64, i64)>;

/// Returns at most `most` keys that begin with one of the prefixes and are held.
pub(crate) async fn list(
    names: &RedisNames,
    scripts: &Scripts,
    commands: &Commands,
    prefixes: &[String],
    most: usize,
) -> Result<Vec<(String, Holder)>, BackendError> {
    let (mut held, mut seen) = (Vec::new(), HashSet::new());
    for prefix in prefixes {
        let mut cursor = 0;
        loop {
            let (next, found) = step(commands, cursor, &names.locks(prefix)).await?;
            // The server may name a key twice.
            let new: Vec<String> = found.into_iter().filter(|it| seen.insert(it.clone())).collect();
            for (lock, found) in new.iter().zip(inspect(scripts, commands, &new).await?) {
                if let (Some(key), Some(found)) = (names.key_of(lock), found)
                    // Anything else under such a name is no lock.
                    && let Ok(holder) = holder(lock, found)
                {
                    held.push((key.to_owned(), holder));
                }
            }
            held.truncate(most);
            if held.len() == most {
                return Ok(held);
            }
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
    }
    Ok(held)
}

async fn step(
    commands: &Commands,
    cursor: u64,
    pattern: &str,
) -> Result<(u64, Vec<String>), BackendError> {
    let mut scan = redis::cmd("SCAN");
    scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
    let step = scan.query_async(&mut commands.connection()).await;
    let (next, found): (u64, Vec<Vec<u8>>) = answered(step)?;
    Ok((next, found.into_iter().filter_map(|name| String::from_utf8(name).ok()).collect()))
}

async fn inspect(
    scripts: &Scripts,
    commands: &Commands,
    locks: &[String],
) -> Result<Vec<FoundLease>, BackendError> {
    if locks.is_empty() {
        return Ok(Vec::new());
    }
    let calls: Vec<ScriptCall<'_>> =
        locks.iter().map(|lock| scripts.inspect.key(lock.clone())).collect();
    answered(commands.run_all(&calls).await)
}

/// The holder of a lease, as it is stored.
pub(crate) fn holder(
    lock: &str,
    (stored, remaining, now): (String, i64, i64),
) -> Result<Holder, BackendError> {
    let mut parts = stored.splitn(4, '|');
    let owner = parts.next().and_then(|owner| Uuid::parse_str(owner).ok());
    let mut number = || parts.next()?.parse::<i64>().ok();
    let (Some(token), Some(since)) = (number(), number()) else {
        return Err(BackendError::new(format!(
            "Redis: the value stored as `{lock}` is not a lock"
        )));
    };
    let held = left(now.saturating_sub(since));
    let holder = parts.next().unwrap_or_default();
    let mut holder = Holder::new(holder, token).held(held).remaining(left(remaining));
    holder.owner = owner;
    Ok(holder)
}
