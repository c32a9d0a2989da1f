//! Listing the keys that are held.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use ekbatan_lock::{BackendError, Holder};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::leases::Leases;
use crate::queue::{Place, Queue};

/// How many places the server is asked for at a time.
const PAGE: i64 = 1_000;

/// How many leases the server is asked about at a time.
const AT_A_TIME: usize = 16;

/// Returns at most `most` keys that begin with one of the prefixes and are held.
pub(crate) async fn list(
    queue: &Queue,
    leases: &Leases,
    prefixes: &[String],
    most: usize,
) -> Result<Vec<(String, Holder)>, BackendError> {
    let mut firsts = BTreeMap::new();
    for prefix in prefixes {
        first_places(queue, prefix, most, &mut firsts).await?;
    }
    let held = firsts.into_iter().take(most).map(|(key, place)| async move {
        let remaining = leases.remaining(place.lease).await?;
        Ok((key, place.holder().remaining(Some(remaining))))
    });
    stream::iter(held).buffered(AT_A_TIME).try_collect().await
}

/// Adds the first place of each key, until there are more than `most`.
async fn first_places(
    queue: &Queue,
    prefix: &str,
    most: usize,
    firsts: &mut BTreeMap<String, Place>,
) -> Result<(), BackendError> {
    let folder = queue.names().locks(prefix);
    let mut from = folder.first;
    loop {
        let page = queue.page(from, folder.end.clone(), PAGE).await?;
        for (key, place) in page.places {
            match firsts.entry(key) {
                Entry::Vacant(none) => drop(none.insert(place)),
                Entry::Occupied(mut first) if place.created < first.get().created => {
                    first.insert(place);
                }
                Entry::Occupied(_) => {}
            }
        }
        // The places of a key follow each other, so all but the last key are complete.
        match page.rest {
            Some(rest) if firsts.len() <= most => from = rest,
            _ => return Ok(()),
        }
    }
}
