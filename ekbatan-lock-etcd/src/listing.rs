//! Listing the keys that are held.

use std::collections::BTreeMap;

use ekbatan_lock::{BackendError, Holder};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::leases::Leases;
use crate::messages::KeyValue;
use crate::queue::Queue;

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
    let held = firsts.into_iter().take(most).filter_map(|(key, found)| {
        let place = queue.place(found)?;
        Some(async move {
            let remaining = leases.remaining(place.lease).await?;
            Ok((key, place.holder().remaining(Some(remaining))))
        })
    });
    stream::iter(held).buffered(AT_A_TIME).try_collect().await
}

/// Adds the first place of each key, until there are more than `most`.
async fn first_places(
    queue: &Queue,
    prefix: &str,
    most: usize,
    firsts: &mut BTreeMap<String, KeyValue>,
) -> Result<(), BackendError> {
    let folder = queue.names().locks(prefix);
    let mut from = folder.first;
    loop {
        let (places, more) = queue.page(from, folder.end.clone(), PAGE).await?;
        let Some(last) = places.last().map(|place| place.key.clone()) else { return Ok(()) };
        for place in places {
            let Some((key, _)) = queue.names().read(&place.key) else { continue };
            let first = firsts.entry(key).or_insert_with(|| place.clone());
            if place.create_revision < first.create_revision {
                *first = place;
            }
        }
        // The places of a key follow each other, so all but the last key are complete.
        if !more || firsts.len() > most {
            return Ok(());
        }
        // The next name that there can be.
        from = last;
        from.push(0);
    }
}
