//! The queue of each key: one place per acquisition, in the order in which the server made them.
//! Whoever has the first place holds the key.
//!
//! Invariants: a place is made, moved to another lease and removed in one transaction of the
//! server. Only its own acquisition, its lease or force removes it. A transaction may be sent
//! twice.

mod epoch;
mod transaction;

use std::sync::Arc;

use ekbatan_lock::{BackendError, Grant, Holder};
use uuid::Uuid;

use self::epoch::Epoch;
use self::transaction::{Answer, Transaction};
use crate::answer::Effect;
use crate::client::Client;
use crate::messages::KeyValue;
use crate::names::EtcdNames;

pub(crate) struct Queue {
    names: EtcdNames,
    epoch: Epoch,
}

/// A place in the queue of a key.
pub(crate) struct Place {
    pub(crate) owner: Uuid,
    pub(crate) holder: String,
    pub(crate) token: i64,
    /// The revision at which it was made.
    pub(crate) created: i64,
    pub(crate) lease: i64,
}

/// What a waiter finds.
pub(crate) enum Look {
    /// It has the key.
    First {
        /// The token of the grant.
        token: i64,
    },
    /// It waits for this place to be removed after this revision.
    Behind {
        /// The name of the place before.
        place: Vec<u8>,
        /// The revision of the look.
        revision: i64,
    },
    /// Its place is gone.
    Gone,
}

/// A part of the places of a namespace.
pub(crate) struct Page {
    /// Each with its key, in the order of their names.
    pub(crate) places: Vec<(String, Place)>,
    /// The name from which on there are more.
    pub(crate) rest: Option<Vec<u8>>,
}

/// A place that was made.
pub(crate) struct Made {
    /// The revision at which it was made.
    pub(crate) created: i64,
    /// The token of the grant, if the place is the first.
    pub(crate) token: Option<i64>,
}

/// A place that was removed.
pub(crate) struct Left {
    /// The lease that it had.
    pub(crate) lease: i64,
    /// Whether it was the first: a waiter that gives up leaves another one.
    pub(crate) was_first: bool,
}

impl Queue {
    /// The queues of a namespace. Fails if this process may not write there.
    pub(crate) async fn open(client: Arc<Client>, names: EtcdNames) -> Result<Self, BackendError> {
        let epoch = Epoch::new(client, names.epoch());
        epoch.make().await?;
        Ok(Self { names, epoch })
    }

    pub(crate) fn names(&self) -> &EtcdNames {
        &self.names
    }

    /// The first place of a key.
    pub(crate) async fn first(&self, key: &str) -> Result<Option<Place>, BackendError> {
        let asked = Transaction::new().first(&self.names.places(key));
        let mut answer = self.epoch.send(asked, Effect::None).await?;
        Ok(answer.keys()?.pop().and_then(|found| self.place(found, &answer)))
    }

    /// Takes the first place of a key if there is none. Returns the token, or `None`.
    pub(crate) async fn take(
        &self,
        key: &str,
        owner: Uuid,
        holder: &str,
        lease: i64,
    ) -> Result<Option<i64>, BackendError> {
        let places = self.names.places(key);
        let taken = Transaction::new()
            .if_empty(&places)
            .put(self.names.place(key, owner), holder, lease)
            .otherwise(Transaction::new().first(&places));
        let mut answer = self.epoch.send(taken, Effect::Possible).await?;
        if answer.succeeded {
            return Ok(Some(answer.token(answer.revision)));
        }
        // If it was sent twice, the first may be our own.
        let first = answer.keys()?.pop().and_then(|found| self.place(found, &answer));
        Ok(first.filter(|first| first.owner == owner).map(|first| first.token))
    }

    /// Takes the last place of a key, unless this acquisition has one.
    pub(crate) async fn enter(
        &self,
        key: &str,
        owner: Uuid,
        holder: &str,
        lease: i64,
    ) -> Result<Made, BackendError> {
        let (places, place) = (self.names.places(key), self.names.place(key, owner));
        let entered = Transaction::new()
            .if_created(&place, 0)
            .put(place.clone(), holder, lease)
            .first(&places)
            .get(&place)
            .otherwise(Transaction::new().first(&places).get(&place));
        let mut answer = self.epoch.send(entered, Effect::Possible).await?;
        if answer.succeeded {
            answer.skip();
        }
        let (first, own) = (answer.keys()?.pop(), answer.keys()?.pop());
        let own =
            own.ok_or_else(|| BackendError::in_doubt("etcd: a place that was made is gone"))?;
        let is_first = first.is_some_and(|first| first.key == own.key);
        let created = own.create_revision;
        Ok(Made { created, token: is_first.then(|| answer.token(created)) })
    }

    /// What a waiter with this place has to wait for.
    pub(crate) async fn look(
        &self,
        key: &str,
        owner: Uuid,
        created: i64,
    ) -> Result<Look, BackendError> {
        let place = self.names.place(key, owner);
        let looked = Transaction::new().get(&place).last_before(&self.names.places(key), created);
        let mut answer = self.epoch.send(looked, Effect::None).await?;
        let own = answer.keys()?.pop().filter(|own| own.create_revision == created);
        let before = answer.keys()?.pop();
        Ok(match (own, before) {
            (None, _) => Look::Gone,
            (Some(_), None) => Look::First { token: answer.token(created) },
            (Some(_), Some(before)) => {
                Look::Behind { place: before.key, revision: answer.revision }
            }
        })
    }

    /// Whether a grant stands, and the revision at which that was so.
    pub(crate) async fn stands(
        &self,
        key: &str,
        grant: &Grant,
    ) -> Result<(bool, i64), BackendError> {
        let asked = Transaction::new().get(&self.names.place(key, grant.owner));
        let mut answer = self.epoch.send(asked, Effect::None).await?;
        let found = answer.keys()?.pop();
        let stands = found.is_some_and(|it| self.is_of(&it, grant));
        Ok((stands, answer.revision))
    }

    /// Attaches a place to another lease. Returns the lease that it had, zero if it was this one
    /// already, or `None` if the grant does not stand.
    pub(crate) async fn attach(
        &self,
        key: &str,
        grant: &Grant,
        lease: i64,
    ) -> Result<Option<i64>, BackendError> {
        /// How often another request for the same grant may come in between.
        const TRIES: usize = 4;
        let place = self.names.place(key, grant.owner);
        let mut created = self.created(grant);
        let mut modified = created;
        for _ in 0..TRIES {
            // An extension that was given up may arrive after this one. It names an older
            // revision, and changes nothing.
            let moved = Transaction::new()
                .if_created(&place, created)
                .if_modified(&place, modified)
                .attach(&place, lease)
                .otherwise(Transaction::new().get(&place));
            let mut answer = self.epoch.send(moved, Effect::Possible).await?;
            if answer.succeeded {
                return Ok(Some(answer.replaced()?.map_or(0, |it| it.lease)));
            }
            match answer.keys()?.pop() {
                Some(own) if self.is_of(&own, grant) && own.lease == lease => return Ok(Some(0)),
                Some(own) if self.is_of(&own, grant) => {
                    (created, modified) = (own.create_revision, own.mod_revision);
                }
                _ => return Ok(None),
            }
        }
        Err(BackendError::unavailable("etcd: a lease is extended by several callers at a time"))
    }

    /// Removes the place of a grant. Returns it if it was there, and whether others wait.
    pub(crate) async fn leave(
        &self,
        key: &str,
        grant: &Grant,
    ) -> Result<(Option<Left>, bool), BackendError> {
        let (places, place) = (self.names.places(key), self.names.place(key, grant.owner));
        // The owner alone names a place whose token is not known.
        let mut created = (grant.token != 0).then(|| self.created(grant));
        loop {
            let mut removed = Transaction::new().first(&places);
            if let Some(created) = created {
                removed = removed.if_created(&place, created);
            }
            let removed =
                removed.remove(&place).count(&places).otherwise(Transaction::new().get(&place));
            let mut answer = self.epoch.send(removed, Effect::Possible).await?;
            if answer.succeeded {
                let was_first = answer.keys()?.pop().is_some_and(|first| first.key == place);
                let left = answer.removed()?.map(|place| Left { lease: place.lease, was_first });
                return Ok((left, answer.count()? > 0));
            }
            // The token may have been counted from an earlier epoch.
            let own = answer.keys()?.pop().filter(|own| self.is_of(own, grant));
            match own.map(|own| own.create_revision) {
                own @ Some(_) if own != created => created = own,
                _ => return Ok((None, false)),
            }
        }
    }

    /// The places of the range, page by page: at most `most`, from this one on.
    pub(crate) async fn page(
        &self,
        from: Vec<u8>,
        end: Vec<u8>,
        most: i64,
    ) -> Result<Page, BackendError> {
        let asked = Transaction::new().page(from, end, most);
        let mut answer = self.epoch.send(asked, Effect::None).await?;
        let (found, has_more) = answer.page()?;
        let rest = found.last().filter(|_| has_more).map(|last| {
            let mut next = last.key.clone();
            next.push(0);
            next
        });
        let places = found.into_iter().filter_map(|found| self.keyed_place(found, &answer));
        Ok(Page { places: places.collect(), rest })
    }

    fn place(&self, found: KeyValue, answer: &Answer) -> Option<Place> {
        self.keyed_place(found, answer).map(|(_, place)| place)
    }

    /// A place and its key, or `None` if the name is that of something else.
    fn keyed_place(&self, found: KeyValue, answer: &Answer) -> Option<(String, Place)> {
        let (key, owner) = self.names.read(&found.key)?;
        let place = Place {
            owner,
            holder: String::from_utf8_lossy(&found.value).into_owned(),
            token: answer.token(found.create_revision),
            created: found.create_revision,
            lease: found.lease,
        };
        Some((key, place))
    }

    /// The revision at which the place of a grant was made, unless the epoch has been moved since.
    fn created(&self, grant: &Grant) -> i64 {
        self.epoch.revision(grant.token)
    }

    /// Whether this place, which has the name of the grant's owner, is that of the grant.
    fn is_of(&self, place: &KeyValue, grant: &Grant) -> bool {
        self.epoch.counts(grant.token, place.create_revision)
    }
}

impl Place {
    /// The holder for operators.
    pub(crate) fn holder(self) -> Holder {
        Holder::new(self.holder, self.token).owner(self.owner)
    }
}
