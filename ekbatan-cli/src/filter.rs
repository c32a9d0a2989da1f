//! Makes a filter of what the command line selects.

use chrono::{DateTime, Utc};
use ekbatan::events::DeliveryFilter;

use crate::args::Selection;
use crate::failure::Failure;

/// The filter of a selection.
pub fn filter(selection: Selection) -> Result<DeliveryFilter, Failure> {
    let Selection { handler, settled, stored, event_type, model_type, model_id, from, until } =
        selection;
    let handler = handler.ok_or_else(|| {
        Failure::usage("--handler is missing; name one, `ekbatan events status` lists them")
    })?;
    let mut filter = match (stored, settled) {
        (true, _) => DeliveryFilter::stored_events(handler),
        (_, true) => DeliveryFilter::settled_letters(handler),
        _ => DeliveryFilter::dead_letters(handler),
    };
    if let Some(name) = event_type {
        filter = filter.event_type(name);
    }
    if let Some(name) = model_type {
        filter = filter.model_type(name);
    }
    if let Some(id) = model_id {
        filter = filter.model_id(id);
    }
    if let Some(text) = from {
        filter = filter.from(date("--from", &text)?);
    }
    if let Some(text) = until {
        filter = filter.until(date("--until", &text)?);
    }
    Ok(filter)
}

fn date(option: &str, text: &str) -> Result<DateTime<Utc>, Failure> {
    DateTime::parse_from_rfc3339(text).map(|date| date.to_utc()).map_err(|error| {
        Failure::usage(format!(
            "{option} `{text}` is not a time ({error}); write it as 2026-03-01T09:00:00Z"
        ))
    })
}
