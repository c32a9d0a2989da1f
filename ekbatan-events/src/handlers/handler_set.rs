//! The handlers of a node, and the check of their options.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ekbatan_core::__private::deliveries::{OwnedHandler, Subscriptions, Wanted};

use crate::error::StartError;
use crate::handlers::node_handler::Handler;
use crate::options::{Order, Rate};

/// The most events of a batch.
const BATCH: usize = 1_000;

/// A rate over a longer time would hold what a node has claimed for that long.
const LONGEST_RATE: Duration = Duration::from_secs(24 * 60 * 60);

/// The handlers of a node, by their names.
#[derive(Clone, Default)]
pub(crate) struct HandlerSet {
    handlers: Vec<Arc<Handler>>,
    /// Names and aliases.
    by_name: HashMap<String, usize>,
}

impl HandlerSet {
    /// Fails if options cannot work, or if two handlers have one name.
    pub(crate) fn new(handlers: Vec<Handler>) -> Result<Self, StartError> {
        let mut set = Self::default();
        for handler in handlers {
            check(&handler)?;
            let at = set.handlers.len();
            for name in std::iter::once(handler.name).chain(aliases(&handler)) {
                if let Some(other) = set.by_name.insert(name.to_owned(), at) {
                    let other = set.handlers.get(other).map_or(&handler, Arc::as_ref);
                    return Err(StartError::NameTwice {
                        name: name.to_owned(),
                        first: other.description(),
                        second: handler.description(),
                    });
                }
            }
            set.handlers.push(Arc::new(handler));
        }
        Ok(set)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Arc<Handler>> {
        self.handlers.iter()
    }

    /// The handlers, as the commits of this process see them. `subscriptions` are those with which the
    /// node begins.
    pub(crate) fn owned(&self, subscriptions: &Subscriptions) -> Vec<OwnedHandler> {
        let owned = |handler: &Arc<Handler>| OwnedHandler {
            name: handler.name,
            since: subscriptions.since(handler.name),
            is_ordered: handler.options.order == Order::PerModel,
            most: handler.most_held(),
            paused: handler.paused.clone(),
            begins_closed: handler.relay().is_some(),
        };
        self.handlers.iter().map(owned).collect()
    }

    /// The handler with this name or alias.
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<Handler>> {
        self.by_name.get(name).map(|at| &self.handlers[*at])
    }

    /// The name and the aliases of each handler.
    pub(crate) fn names(&self) -> impl Iterator<Item = (&str, &Arc<Handler>)> {
        self.by_name.iter().map(|(name, at)| (name.as_str(), &self.handlers[*at]))
    }
}

fn aliases(handler: &Handler) -> impl Iterator<Item = &str> {
    handler.options.aliases.iter().map(String::as_str)
}

fn check(handler: &Handler) -> Result<(), StartError> {
    let refuse =
        |option, why: String| Err(StartError::Option { handler: handler.name, option, why });
    let options = &handler.options;
    let aliases = aliases(handler).map(|alias| ("alias", alias));
    for (option, name) in std::iter::once(("NAME", handler.name)).chain(aliases) {
        if name.trim().is_empty() {
            let of = handler.description();
            return refuse(option, format!("`{name}` of {of} is blank; use at least one letter"));
        }
        if name.len() > 255 {
            return refuse(option, format!("`{name}` has {} bytes; use at most 255", name.len()));
        }
    }
    if handler.events.iter().all(|event| *event == Wanted::Fence.text()) {
        return refuse(
            "selection",
            "it selects no events; name events or models, or take all".to_owned(),
        );
    }
    if let Some(event) = handler.events.iter().find(|event| event.len() > 255) {
        return refuse(
            "selection",
            format!("`{event}` has {} bytes; use at most 255", event.len()),
        );
    }
    if !(1..=BATCH).contains(&handler.batch_size()) {
        return refuse("batch_size", format!("{} is not from 1 to {BATCH}", handler.batch_size()));
    }
    if options.concurrency == 0 {
        return refuse("concurrency", "0 events at a time handle none; use at least 1".to_owned());
    }
    if let Some(Rate { runs, per }) = options.rate
        && (runs == 0 || per.is_zero() || per > LONGEST_RATE)
    {
        let why = format!("{runs} runs in {per:?}; use at least 1 run, in up to {LONGEST_RATE:?}");
        return refuse("rate", why);
    }
    if options.timeout.is_zero() {
        return refuse("timeout", "0 s leave no time to handle anything".to_owned());
    }
    if options.max_attempts == Some(0) {
        return refuse(
            "max_attempts",
            "0 gives events up before they are tried; use at least 1".to_owned(),
        );
    }
    if options.retry.longest < options.retry.first {
        let (first, longest) = (options.retry.first, options.retry.longest);
        return refuse(
            "retry",
            format!("the longest pause, {longest:?}, is shorter than the first, {first:?}"),
        );
    }
    Ok(())
}
