//! The commands about the documents of keys.
//!
//! Invariants: a write is confirmed by a majority of the members, and is in their journals,
//! before it counts. A command that changes a grant names its owner and its token.

use std::time::Duration;

use ekbatan_lock::{BackendError, Grant, GrantExtension, GrantRequest, Holder};
use mongodb::bson::{Bson, Document, doc};
use uuid::Uuid;

use crate::answer::{number, unexpected, written};
use crate::client::Commands;
use crate::pipeline::{extend, force, give_up, looked_at, release, renew_place, set_term, take};

/// Greater than every text that begins with the same letters.
const LAST: char = '\u{10ffff}';

pub(crate) struct Documents {
    commands: Commands,
}

fn safely() -> Document {
    doc! { "w": "majority", "j": true }
}

/// The document of a grant, whether it stands or not.
fn of(key: &str, grant: &Grant) -> Document {
    doc! { "_id": key, "owner": grant.owner.to_string(), "token": grant.token }
}

/// One change among several.
fn change(query: Document, steps: Vec<Bson>) -> Bson {
    doc! { "q": query, "u": steps }.into()
}

impl Documents {
    pub(crate) fn new(commands: Commands) -> Self {
        Self { commands }
    }

    pub(crate) fn commands(&self) -> &Commands {
        &self.commands
    }

    /// Changes one document, and returns these fields of it.
    async fn change(
        &self,
        query: Document,
        steps: Vec<Bson>,
        makes: bool,
        fields: Document,
    ) -> Result<Option<Document>, BackendError> {
        let command = doc! {
            "findAndModify": self.commands.collection(),
            "query": query,
            "update": steps,
            "upsert": makes,
            "new": true,
            "fields": fields,
            "writeConcern": safely(),
        };
        let mut answer = self.commands.change(command).await?;
        written(&answer)?;
        match answer.remove("value") {
            Some(Bson::Document(document)) => Ok(Some(document)),
            _ => Ok(None),
        }
    }

    /// Takes the key, or gives the request a place. Returns the token if the key is granted.
    pub(crate) async fn take(
        &self,
        key: &str,
        request: &GrantRequest,
    ) -> Result<Option<i64>, BackendError> {
        let fields = doc! { "owner": 1, "token": 1 };
        let document = self.change(doc! { "_id": key }, take(request), true, fields).await?;
        let document = document.ok_or_else(|| unexpected("the document"))?;
        if document.get_str("owner").ok() != Some(&*request.owner.to_string()) {
            return Ok(None);
        }
        number(&document, "token").map(Some).ok_or_else(|| unexpected("the token"))
    }

    /// Changes the document of a grant. Returns whether the grant stood.
    async fn of_grant(
        &self,
        key: &str,
        grant: &Grant,
        steps: Vec<Bson>,
    ) -> Result<bool, BackendError> {
        let found = self.change(of(key, grant), steps, false, doc! { "stood": 1 }).await?;
        Ok(found.is_some_and(|found| found.get_bool("stood").unwrap_or(false)))
    }

    pub(crate) async fn extend(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.of_grant(key, grant, extend(term)).await
    }

    pub(crate) async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.of_grant(key, grant, set_term(term)).await
    }

    /// Which of them stood, and last now. The server says how many documents it changed, so a second
    /// request looks at them.
    pub(crate) async fn extend_all(
        &self,
        extensions: &[GrantExtension],
    ) -> Result<Vec<bool>, BackendError> {
        let each = |it: &GrantExtension| change(of(&it.key, &it.grant), extend(it.term));
        self.update(extensions.iter().map(each).collect()).await?;
        let keys: Vec<String> = extensions.iter().map(|it| it.key.clone()).collect();
        let found = self.look(&keys).await?;
        let stands = |it: &GrantExtension| {
            let is_it = |found: &&Document| found.get_str("_id").is_ok_and(|key| key == it.key);
            found.iter().find(is_it).is_some_and(|found| {
                found.get_str("owner").is_ok_and(|owner| owner == it.grant.owner.to_string())
                    && number(found, "token") == Some(it.grant.token)
                    && number(found, "remaining").is_some_and(|remaining| remaining > 0)
            })
        };
        Ok(extensions.iter().map(stands).collect())
    }

    /// Whether the grant stood. An acquisition whose answer was lost may also wait, or still be on its
    /// way, and then there may be no document yet.
    pub(crate) async fn release(&self, key: &str, grant: &Grant) -> Result<bool, BackendError> {
        if grant.token != 0 {
            return self.of_grant(key, grant, release()).await;
        }
        let steps = give_up(grant.owner);
        let found = self.change(doc! { "_id": key }, steps, true, doc! { "stood": 1 }).await?;
        Ok(found.is_some_and(|found| found.get_bool("stood").unwrap_or(false)))
    }

    pub(crate) async fn force(&self, key: &str, seen: &Grant) -> Result<bool, BackendError> {
        self.of_grant(key, seen, force()).await
    }

    /// Changes several documents, each by itself.
    async fn update(&self, changes: Vec<Bson>) -> Result<(), BackendError> {
        let command = doc! {
            "update": self.commands.collection(),
            "updates": changes,
            "ordered": false,
            "writeConcern": safely(),
        };
        written(&self.commands.run(command).await?)
    }

    pub(crate) async fn renew_places(&self, late: &[(String, Uuid)]) -> Result<(), BackendError> {
        let renew = |(key, owner): &(String, Uuid)| {
            let query = doc! { "_id": key, "waiters.o": owner.to_string() };
            change(query, renew_place(*owner))
        };
        self.update(late.iter().map(renew).collect()).await
    }

    /// The documents of these keys, for waiters.
    pub(crate) async fn look(&self, keys: &[String]) -> Result<Vec<Document>, BackendError> {
        let found = doc! { "$match": { "_id": { "$in": keys } } };
        self.commands.aggregate(vec![found.into(), doc! { "$project": looked_at() }.into()]).await
    }

    pub(crate) async fn holder(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let found = self.commands.aggregate(held(doc! { "_id": key }, 1)).await?;
        found.first().map(holder).transpose()
    }

    /// At most `most` keys that are held and begin with one of the prefixes, with their holders.
    pub(crate) async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        let mut listed = Vec::new();
        for prefix in prefixes {
            let most = most.saturating_sub(listed.len());
            if most == 0 {
                break;
            }
            let range = doc! { "_id": { "$gte": prefix, "$lt": format!("{prefix}{LAST}") } };
            for document in self.commands.aggregate(held(range, most)).await? {
                let key = document.get_str("_id").map_err(|_| unexpected("a key"))?.to_owned();
                if key.starts_with(prefix.as_str()) {
                    listed.push((key, holder(&document)?));
                }
            }
        }
        Ok(listed)
    }
}

/// The steps that find the keys that are held.
fn held(query: Document, most: usize) -> Vec<Bson> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let fields = doc! {
        "owner": 1,
        "holder": 1,
        "token": 1,
        "held": { "$subtract": ["$$NOW", "$since"] },
        "remaining": { "$subtract": ["$until", "$$NOW"] },
    };
    vec![
        doc! { "$match": query }.into(),
        doc! { "$project": fields }.into(),
        doc! { "$match": { "remaining": { "$gt": 0 } } }.into(),
        doc! { "$sort": { "_id": 1 } }.into(),
        doc! { "$limit": most }.into(),
    ]
}

fn holder(document: &Document) -> Result<Holder, BackendError> {
    let text = |field: &str| document.get_str(field).ok();
    let time = |field: &str| {
        number(document, field)
            .map(|time| Duration::from_millis(time.try_into().unwrap_or_default()))
    };
    let owner = text("owner").and_then(|owner| Uuid::parse_str(owner).ok());
    let token = number(document, "token");
    let (Some(owner), Some(token)) = (owner, token) else { return Err(unexpected("a holder")) };
    let holder = Holder::new(text("holder").unwrap_or_default(), token).owner(owner);
    Ok(holder.held(time("held")).remaining(time("remaining")))
}
