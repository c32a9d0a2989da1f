//! Finds deliveries that are due and that nobody handles.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use ekbatan_core::__private::deliveries::{Delivery, DeliveryState, WantedDue};
use ekbatan_core::action::Priority;
use ekbatan_core::domain::Id;
use ekbatan_core::repository::{PageRequest, Repository};
use ekbatan_core::shard::Shard;
use uuid::Uuid;

use crate::claims::claimed::Candidate;
use crate::claims::look_from::{LookFrom, Oldest};
use crate::error::EventsError;
use crate::handlers::handler_set::HandlerSet;
use crate::handlers::node_handler::Handler;

/// How many deliveries of one name, state and priority are looked at, if there are many handlers.
const FEWEST: usize = 16;

/// The states in which deliveries can be claimed.
const STATES: [DeliveryState; 2] = [DeliveryState::New, DeliveryState::Waiting];

/// How many deliveries of each priority a round may claim for a handler, the highest priority first.
pub(crate) type Room = Vec<(Priority, usize)>;

/// A handler that has room, by one of its names.
struct Open<'o> {
    name: &'o str,
    handler: &'o Arc<Handler>,
    room: &'o Room,
}

/// What could be claimed at the begin of a round.
pub(crate) struct Candidates {
    pub(crate) found: Vec<Candidate>,
    /// The generation of the subscriptions at that time.
    pub(crate) generation: i64,
}

/// Looks for deliveries of one shard that a node may claim.
pub(crate) struct CandidateLook<'c> {
    pub(crate) shard: &'c Shard,
    pub(crate) deliveries: &'c Repository<Delivery>,
    pub(crate) handlers: &'c HandlerSet,
    pub(crate) node: Uuid,
    /// The deliveries that this node holds already.
    pub(crate) held: &'c HashSet<Uuid>,
    /// By handler, the models whose streams the look skips.
    pub(crate) passed_over: &'c HashMap<&'static str, Vec<Uuid>>,
    /// How many deliveries are looked at; more, if there are many handlers.
    pub(crate) at_once: usize,
    /// Whether it looks from the start of the index.
    pub(crate) finds_all: bool,
}

impl CandidateLook<'_> {
    /// The oldest deliveries that are due, at most as many of each handler as it has room for. Those of
    /// higher priority come first.
    pub(crate) async fn candidates(
        &self,
        room: &HashMap<&'static str, Room>,
        now: DateTime<Utc>,
        look_from: &mut LookFrom,
    ) -> Result<Option<Candidates>, EventsError> {
        let is_open = |room: &&Room| room.iter().any(|(_, room)| *room > 0);
        let names = self.handlers.names().filter_map(|(name, handler)| {
            let room = room.get(handler.name).filter(is_open)?;
            Some(Open { name, handler, room })
        });
        let open: Vec<Open<'_>> = names.collect();
        if open.is_empty() {
            return Ok(None);
        }
        let wanted = self.wanted(&open, look_from);
        let most = (self.at_once / open.len()).max(FEWEST);
        let due = self.shard.due(&wanted, now, most).await?;
        let chosen = self.choose(&wanted, &due.deliveries, room, most);
        let found = self.claimable(chosen).await?;
        for (question, ids) in wanted.iter().zip(&due.deliveries) {
            // A stream that was passed over may have older ones.
            if question.except.iter().all(|id| *id == self.node) {
                let WantedDue { handler, state, priority, .. } = *question;
                look_from.note(handler, state, priority, oldest(ids, &found, now));
            }
        }
        Ok(Some(Candidates { found, generation: due.generation }))
    }

    /// Those of these deliveries that can be claimed still.
    async fn claimable(&self, ids: Vec<Uuid>) -> Result<Vec<Candidate>, EventsError> {
        let mut found = Vec::with_capacity(ids.len());
        if ids.is_empty() {
            return Ok(found);
        }
        // There are few sizes, because each is a statement of its own.
        let request = PageRequest::first(ids.len().next_power_of_two())
            .filter(Delivery::ID.is_in(ids.into_iter().map(Id::from_uuid).collect::<Vec<_>>()))
            .by_index();
        for row in self.deliveries.page(request).await?.rows {
            let Some(handler) = self.handlers.get(&row.handler) else { continue };
            if STATES.contains(&row.state) {
                found.push((handler.clone(), row));
            }
        }
        Ok(found)
    }

    /// What is asked for each name, state and priority. All priorities of a handler are asked that has room
    /// for one: so there are few different statements.
    fn wanted<'n>(&self, open: &[Open<'n>], look_from: &LookFrom) -> Vec<WantedDue<'n>> {
        let passed_over = |name: &str| self.passed_over.get(name).filter(|of| !of.is_empty());
        let any = open.iter().any(|of| passed_over(of.handler.name).is_some());
        let mut questions = Vec::new();
        for Open { name, handler, room } in open {
            let mut except: Vec<Uuid> =
                passed_over(handler.name).into_iter().flatten().copied().collect();
            // If one question passes streams over, all do: so there are few different statements.
            // The node is no stream; the nil id may be one.
            if any && except.is_empty() {
                except.push(self.node);
            }
            for (priority, _) in *room {
                for state in STATES {
                    questions.push(WantedDue {
                        state,
                        handler: name,
                        priority: *priority,
                        except: except.clone(),
                        from: look_from.date(name, state, *priority),
                    });
                }
            }
        }
        // Either none of the questions has a date or all have one.
        let from_start = self.finds_all || questions.iter().all(|one| one.from.is_none());
        for one in &mut questions {
            one.from = (!from_start).then(|| one.from.unwrap_or(DateTime::UNIX_EPOCH));
        }
        questions
    }

    /// The ids that handlers have room for: for each handler those of higher priority first, and of one
    /// priority those of each name and state in turn.
    fn choose(
        &self,
        wanted: &[WantedDue<'_>],
        found: &[Vec<Uuid>],
        room: &HashMap<&'static str, Room>,
        most: usize,
    ) -> Vec<Uuid> {
        let mut lists: HashMap<(&'static str, Priority), Vec<Vec<Uuid>>> = HashMap::new();
        for (question, ids) in wanted.iter().zip(found) {
            let Some(handler) = self.handlers.get(question.handler) else { continue };
            lists.entry((handler.name, question.priority)).or_default().push(ids.clone());
        }
        let mut chosen = Vec::new();
        for (handler, room) in room {
            let mut of_handler = Vec::new();
            for (priority, room) in room {
                let Some(ids) = lists.remove(&(*handler, *priority)) else { continue };
                let has_more = ids.iter().any(|list| list.len() >= most);
                let ids = take_turns(ids).filter(|id| !self.held.contains(id));
                of_handler.extend(ids.take(room.saturating_sub(of_handler.len())));
                // What this look has left behind goes before all of a lower priority.
                if has_more {
                    break;
                }
            }
            chosen.append(&mut of_handler);
        }
        chosen
    }
}

/// When the first of these deliveries was due, the oldest.
fn oldest(ids: &[Uuid], found: &[Candidate], now: DateTime<Utc>) -> Oldest {
    let Some(first) = ids.first() else { return Oldest::NoneAt(now) };
    let row = found.iter().find(|(_, row)| row.id.uuid() == *first);
    row.map_or(Oldest::Unknown, |(_, row)| Oldest::Due(row.due.min(now)))
}

/// One id of each list in turn, so that none keeps the others waiting.
fn take_turns(lists: Vec<Vec<Uuid>>) -> impl Iterator<Item = Uuid> {
    let longest = lists.iter().map(Vec::len).max().unwrap_or_default();
    (0..longest).flat_map(move |at| {
        lists.iter().filter_map(|list| list.get(at).copied()).collect::<Vec<_>>()
    })
}
