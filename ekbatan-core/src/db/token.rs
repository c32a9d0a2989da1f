//! Tokens by which a read on a replica waits for a commit.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::domain::ShardIdentifier;

/// The log position of a shard after a commit. Passed to
/// [`on_replica_after`](crate::repository::Repository::on_replica_after), it prevents a read from
/// a replica that has not applied the commit yet.
///
/// It converts to and from text, so that a cookie or a header can carry it to the process that
/// reads next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CommitToken {
    positions: BTreeMap<ShardIdentifier, Arc<str>>,
}

impl CommitToken {
    pub(crate) fn new(shard: ShardIdentifier, position: &str) -> Self {
        Self { positions: BTreeMap::from([(shard, position.into())]) }
    }

    /// A token for the shards of both.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.positions.extend(other.positions);
        self
    }

    /// The shards that the token covers.
    pub fn shards(&self) -> impl Iterator<Item = ShardIdentifier> + '_ {
        self.positions.keys().copied()
    }

    pub(crate) fn position(&self, shard: ShardIdentifier) -> Option<&str> {
        self.positions.get(&shard).map(|position| &**position)
    }
}

impl fmt::Display for CommitToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (shard, position)) in self.positions.iter().enumerate() {
            write!(f, "{}{shard} {position}", if n == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

impl From<CommitToken> for String {
    fn from(token: CommitToken) -> Self {
        token.to_string()
    }
}

/// Error returned when a text is no [`CommitToken`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no commit token; it takes a shard and a position, such as `0/0 0/16B3748`")]
pub struct CommitTokenError(String);

impl FromStr for CommitToken {
    type Err = CommitTokenError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let one = |text: &str| {
            let (shard, position) = text.split_once(' ')?;
            let (group, member) = shard.split_once('/')?;
            let shard = ShardIdentifier::new(group.parse().ok()?, member.parse().ok()?).ok()?;
            (!position.is_empty()).then(|| (shard, position.into()))
        };
        let parse = || text.split("; ").map(one).collect::<Option<_>>();
        parse().map(|positions| Self { positions }).ok_or_else(|| CommitTokenError(text.to_owned()))
    }
}

impl TryFrom<String> for CommitToken {
    type Error = CommitTokenError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_converts_to_text_and_back() {
        let shard = ShardIdentifier::new(3, 7).unwrap();
        let token = CommitToken::new(shard, "0/16B3748");
        assert_eq!(token.to_string(), "3/7 0/16B3748");
        assert_eq!(token, "3/7 0/16B3748".parse().unwrap());
        let both = token.clone().and(CommitToken::new(ShardIdentifier::DEFAULT, "0/1"));
        assert_eq!(both.to_string(), "0/0 0/1; 3/7 0/16B3748");
        assert_eq!(both, both.to_string().parse().unwrap());
        assert_eq!(
            (both.position(shard), token.position(ShardIdentifier::DEFAULT)),
            (Some("0/16B3748"), None)
        );
        assert_eq!(token, serde_json::from_str(&serde_json::to_string(&token).unwrap()).unwrap());
        for bad in ["", "3/7", "3/7 ", "3 0/1", "300/0 0/1", "x"] {
            assert!(bad.parse::<CommitToken>().is_err(), "{bad}");
        }
    }
}
