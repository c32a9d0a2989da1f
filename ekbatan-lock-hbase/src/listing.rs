//! Listing the keys that are held.

use std::collections::HashSet;
use std::time::Duration;

use ekbatan_lock::{BackendError, Holder};

use crate::locks::Locks;
use crate::row::LockRow;

/// How many rows the server is asked for at a time.
const PAGE: usize = 500;

/// The holder of the lease that stands.
pub(crate) fn holder(row: &LockRow, now: u64) -> Option<Holder> {
    let (grant, lease) = row.standing()?;
    let held = (now > 0).then(|| Duration::from_millis(now.saturating_sub(lease.since)));
    let rest = row.rest(now).map(Duration::from_millis);
    let holder = Holder::new(&lease.holder, grant.token).owner(grant.owner);
    Some(holder.held(held).remaining(rest))
}

/// Returns at most `most` keys that begin with one of the prefixes and are held.
pub(crate) async fn list(
    locks: &Locks,
    prefixes: &[String],
    most: usize,
) -> Result<Vec<(String, Holder)>, BackendError> {
    let (mut held, mut listed) = (Vec::new(), HashSet::new());
    for prefix in prefixes {
        let (mut from, end) = locks.names.range(prefix);
        loop {
            let page = locks.client.page(&from, &end, PAGE).await?;
            let now = locks.clock.now();
            for (row, cells) in page.rows {
                let Some(key) = locks.names.key(&row) else { continue };
                // Anything else in the row is no lock.
                let Ok(found) = LockRow::read(&row, cells) else { continue };
                // Prefixes may overlap.
                if let Some(holder) = holder(&found, now)
                    && listed.insert(key.clone())
                {
                    held.push((key, holder));
                }
                if held.len() >= most {
                    return Ok(held);
                }
            }
            match page.next {
                Some(next) => from = next,
                None => break,
            }
        }
    }
    Ok(held)
}
