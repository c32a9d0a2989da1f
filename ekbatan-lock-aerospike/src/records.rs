//! The commands about the records of keys.
//!
//! Invariant: a command that changes a grant has an effect on that grant only.

use std::time::Duration;

use aerospike::{
    BatchOperation, BatchReadPolicy, BatchWritePolicy, Expiration, RecordExistsAction,
};
use ekbatan_lock::{BackendError, Grant, GrantExtension, GrantRequest, Holder, KeyState};
use uuid::Uuid;

use crate::answer::{number, row, text, unexpected};
use crate::client::{Commands, Write};
use crate::record;

/// The most records of one request.
const PAGE: usize = 500;

pub(crate) struct Records {
    commands: Commands,
    /// This process, for those who wait.
    process: Uuid,
    /// Whether the server deletes records. A strongly consistent namespace does not: what was deleted
    /// could come back.
    forgets: bool,
}

impl Records {
    pub(crate) fn new(commands: Commands, forgets: bool) -> Self {
        Self { commands, process: Uuid::new_v4(), forgets }
    }

    pub(crate) fn commands(&self) -> &Commands {
        &self.commands
    }

    fn kept(&self, term: Duration) -> Expiration {
        if self.forgets { Expiration::Seconds(record::kept(term)) } else { Expiration::Never }
    }

    /// A write that has an effect on this grant only.
    fn of_grant(&self, grant: &Grant, term: Duration) -> Write {
        let filter = Some(record::is_grant(grant));
        Write { filter, record: RecordExistsAction::UpdateOnly, kept: self.kept(term) }
    }

    /// Takes the key. Returns the token, or `None` if the key is busy.
    pub(crate) async fn take(
        &self,
        key: &str,
        request: &GrantRequest,
    ) -> Result<Option<i64>, BackendError> {
        let operations = record::take(key, request, self.process);
        let filter = Some(record::is_free_for(request.owner));
        let write =
            Write { filter, record: RecordExistsAction::Update, kept: self.kept(request.term) };
        match self.commands.write(key, write, &operations).await? {
            Some(taken) => {
                let token = number(&taken, operations.len() - 1);
                token.map(Some).ok_or_else(|| unexpected("the token"))
            }
            None => Ok(None),
        }
    }

    pub(crate) async fn extend(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        for write in extension_writes(grant, term, self.kept(term)) {
            if self.commands.write(key, write, &record::extend(term)).await?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(crate) async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        let write = self.of_grant(grant, term);
        Ok(self.commands.write(key, write, &record::set_term(term)).await?.is_some())
    }

    /// Which of them it has extended. It leaves out also those that last for longer.
    pub(crate) async fn extend_all(
        &self,
        extensions: &[GrantExtension],
    ) -> Result<Vec<bool>, BackendError> {
        let each = |of: &GrantExtension| {
            let [longer, _] = extension_writes(&of.grant, of.term, self.kept(of.term));
            let policy = BatchWritePolicy {
                record_exists_action: longer.record,
                expiration: longer.kept,
                filter_expression: longer.filter,
                ..BatchWritePolicy::default()
            };
            let key = self.commands.batch_key(&of.key)?;
            Ok(BatchOperation::write(&policy, key, record::extend(of.term)))
        };
        let extensions = extensions.iter().map(each).collect::<Result<_, BackendError>>()?;
        let answers = self.commands.batch(extensions).await?;
        Ok(answers.iter().map(|answer| answer.record().is_some()).collect())
    }

    /// Whether the grant stood, and whether another process waits.
    pub(crate) async fn release(
        &self,
        key: &str,
        grant: &Grant,
    ) -> Result<(bool, bool), BackendError> {
        if grant.token == 0 {
            return Ok((self.give_up(key, grant.owner).await?, false));
        }
        let write = self.of_grant(grant, Duration::ZERO);
        match self.commands.write(key, write, &record::release(self.process)).await? {
            Some(released) => Ok((true, number(&released, 0) == Some(1))),
            None => Ok((false, false)),
        }
    }

    /// A record that is there is kept as long as before: it may be that of another grant. One that is
    /// created is kept for a day, as that of any key that nobody uses.
    async fn give_up(&self, key: &str, owner: Uuid) -> Result<bool, BackendError> {
        let operations = record::give_up(owner);
        let update = || (RecordExistsAction::UpdateOnly, Expiration::DontUpdate);
        let create = (RecordExistsAction::CreateOnly, self.kept(Duration::ZERO));
        // The record may be created in between.
        for (record, kept) in [update(), create, update()] {
            let write = Write { filter: None, record, kept };
            if let Some(given_up) = self.commands.write(key, write, &operations).await? {
                return Ok(number(&given_up, 0) == Some(1));
            }
        }
        Err(BackendError::unavailable("Aerospike: a record was created and deleted meanwhile"))
    }

    pub(crate) async fn force(&self, key: &str, seen: &Grant) -> Result<bool, BackendError> {
        let write = self.of_grant(seen, Duration::ZERO);
        Ok(self.commands.write(key, write, &record::force()).await?.is_some())
    }

    /// Says that this process waits for a key that is held.
    pub(crate) async fn mark(&self, key: &str) -> Result<(), BackendError> {
        let filter = Some(record::needs_mark());
        let write =
            Write { filter, record: RecordExistsAction::UpdateOnly, kept: Expiration::DontUpdate };
        self.commands.write(key, write, &record::mark(self.process)).await.map(drop)
    }

    /// The states of the keys, and renews the marks that they are wanted, in one request.
    pub(crate) async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
        let read = BatchReadPolicy::default();
        let write = BatchWritePolicy {
            record_exists_action: RecordExistsAction::UpdateOnly,
            expiration: Expiration::DontUpdate,
            filter_expression: Some(record::needs_mark()),
            ..BatchWritePolicy::default()
        };
        let mut states = Vec::new();
        for page in keys.chunks(PAGE) {
            let mut operations = Vec::new();
            for key in page {
                let key = self.commands.batch_key(key)?;
                operations.push(BatchOperation::read_ops(&read, key.clone(), record::look()));
                operations.push(BatchOperation::write(&write, key, record::mark(self.process)));
            }
            let answers = self.commands.batch(operations).await?;
            for (key, answer) in page.iter().zip(answers.iter().step_by(2)) {
                let Some(found) = row(answer)? else { continue };
                states.push(KeyState {
                    key: key.clone(),
                    grant: number(found, 0).unwrap_or_default(),
                    remaining: Some(duration(number(found, 1).unwrap_or_default())),
                });
            }
        }
        Ok(states)
    }

    pub(crate) async fn holder(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let found = self.commands.read(key, &record::inspect()).await?;
        found.as_ref().map_or(Ok(None), holder)
    }

    /// At most `most` keys that are held and begin with one of the prefixes, with their holders.
    pub(crate) async fn list(
        &self,
        prefixes: &[String],
        most: usize,
    ) -> Result<Vec<(String, Holder)>, BackendError> {
        let mut keys = self.commands.scan("k", record::is_held()).await?;
        keys.retain(|key| prefixes.iter().any(|prefix| key.starts_with(prefix.as_str())));
        keys.sort_unstable();
        let mut listed = Vec::new();
        for page in keys.chunks(PAGE) {
            let read = |key: &String| {
                let policy = BatchReadPolicy::default();
                let key = self.commands.batch_key(key)?;
                Ok(BatchOperation::read_ops(&policy, key, record::inspect()))
            };
            let page_of = page.iter().map(read).collect::<Result<_, BackendError>>()?;
            for (key, answer) in page.iter().zip(self.commands.batch(page_of).await?) {
                if let Some(found) = row(&answer)?
                    && let Some(holder) = holder(found)?
                {
                    listed.push((key.clone(), holder));
                }
            }
            if listed.len() >= most {
                listed.truncate(most);
                break;
            }
        }
        Ok(listed)
    }
}

/// The two writes of an extension. The first one leaves out a grant that lasts for longer already, whose record
/// is kept for longer, too. The second one says whether such a grant stands.
fn extension_writes(grant: &Grant, term: Duration, kept: Expiration) -> [Write; 2] {
    let record = RecordExistsAction::UpdateOnly;
    let longer = Write { filter: Some(record::is_extended_by(grant, term)), record, kept };
    let filter = Some(record::is_grant(grant));
    [longer, Write { filter, record, kept: Expiration::DontUpdate }]
}

/// What is left of a time; nothing if it is over.
fn duration(milliseconds: i64) -> Duration {
    Duration::from_millis(milliseconds.try_into().unwrap_or_default())
}

/// The holder in the answer to [`record::inspect`], unless its term is over.
fn holder(found: &aerospike::Record) -> Result<Option<Holder>, BackendError> {
    let numbers = (number(found, 2), number(found, 3), number(found, 4));
    let (Some(token), Some(held), Some(rest)) = numbers else { return Err(unexpected("a holder")) };
    if rest <= 0 {
        return Ok(None);
    }
    let owner = text(found, 0).and_then(|owner| Uuid::parse_str(owner).ok());
    let owner = owner.ok_or_else(|| unexpected("an owner"))?;
    let holder = Holder::new(text(found, 1).unwrap_or_default(), token).owner(owner);
    Ok(Some(holder.held(Some(duration(held))).remaining(Some(duration(rest)))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_extension_that_makes_a_grant_last_longer_changes_the_life_of_its_record() {
        let (grant, term) = (Grant { owner: Uuid::new_v4(), token: 7 }, Duration::from_secs(90));
        let [longer, standing] = extension_writes(&grant, term, Expiration::Seconds(9));
        assert_eq!(longer.filter, Some(record::is_extended_by(&grant, term)));
        assert_ne!(longer.filter, standing.filter);
        assert!(matches!(longer.kept, Expiration::Seconds(9)));
        assert_eq!(standing.filter, Some(record::is_grant(&grant)));
        assert!(matches!(standing.kept, Expiration::DontUpdate));
        for write in [longer, standing] {
            assert_eq!(write.record, RecordExistsAction::UpdateOnly, "no grant anew");
        }
    }
}
