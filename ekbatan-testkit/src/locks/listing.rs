//! The list of held keys.

use std::time::{Duration, Instant};

use ekbatan_lock::{Grant, Holder};
use uuid::Uuid;

use super::ends::SHORT;
use super::{Failure, LONG, LockConformance, broke, ensure, new_key};

impl LockConformance {
    /// From both processes, whichever of them holds a key.
    pub(super) async fn held_keys_are_listed(&self) -> Result<(), Failure> {
        let (prefix, beside) = (new_key("list"), new_key("listed beside"));
        let [first, second] = ["a", "b"].map(|name| format!("{prefix} {name}"));
        let [released, expired] = ["c", "d"].map(|name| format!("{prefix} {name}"));
        ensure(self.listed(&[&prefix]).await?.is_empty(), || "a free key is listed".to_owned())?;
        let grants = [
            (&first, self.take(&self.one, &first, LONG).await?),
            (&second, self.take(&self.other, &second, LONG).await?),
            (&beside, self.take(&self.one, &beside, LONG).await?),
        ];
        let gone = self.take(&self.one, &released, LONG).await?;
        self.give_back(&self.one, &released, &gone).await?;
        if self.one.frees_by_itself() {
            self.take(&self.other, &expired, SHORT).await?;
            self.until_free(&expired).await?;
        }
        let of_prefix = self.listed(&[&prefix]).await?;
        ensure_exactly(&of_prefix, &grants[..2])?;
        ensure_exactly(&self.listed(&[&prefix, &beside]).await?, &grants)?;
        let at_most_one = self.listed_at_most(&[&prefix], 1).await?;
        ensure(at_most_one.len() == 1 && of_prefix.contains(&at_most_one[0]), || {
            format!("not one of the two held keys: {at_most_one:?}")
        })?;
        for ((key, grant), by) in grants.into_iter().zip([&self.one, &self.other, &self.one]) {
            self.give_back(by, key, &grant).await?;
        }
        ensure_exactly(&self.listed(&[&prefix]).await?, &[])
    }

    /// Waits for the end of a term, which a server may round up to whole seconds.
    async fn until_free(&self, key: &str) -> Result<(), Failure> {
        let started = Instant::now();
        while self.one.inspect(key).await.map_err(broke("inspect"))?.is_some() {
            ensure(started.elapsed() < self.patience, || "a short term does not end".to_owned())?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    /// A prefix is a text, whatever its characters mean to the server.
    pub(super) async fn prefixes_are_texts(&self) -> Result<(), Failure> {
        let unique = Uuid::new_v4();
        for special in ["%", "_", "*", "?", "[a-z]", "\\", "'", "A"] {
            let [meant, other] = [special, "a"].map(|name| format!("{unique} {name} conformance"));
            let prefix = format!("{unique} {special}");
            let grants = [
                (&meant, self.take(&self.one, &meant, LONG).await?),
                (&other, self.take(&self.one, &other, LONG).await?),
            ];
            let listed = self.listed(&[&prefix]).await?;
            ensure_exactly(&listed, &grants[..1])
                .map_err(|why| format!("by the prefix {prefix:?}: {why}"))?;
            for (key, grant) in grants {
                self.give_back(&self.one, key, &grant).await?;
            }
        }
        Ok(())
    }

    /// What both backends list, which is the same.
    async fn listed(&self, prefixes: &[&str]) -> Result<Vec<(String, Token)>, Failure> {
        self.listed_at_most(prefixes, 1_000).await
    }

    async fn listed_at_most(
        &self,
        prefixes: &[&str],
        most: usize,
    ) -> Result<Vec<(String, Token)>, Failure> {
        let prefixes: Vec<String> = prefixes.iter().map(|prefix| (*prefix).to_owned()).collect();
        let mut all = Vec::new();
        for by in [&self.one, &self.other] {
            let listed = by.list(&prefixes, most).await.map_err(broke("list"))?;
            ensure(listed.len() <= most, || format!("more than {most} keys: {listed:?}"))?;
            let mut listed = listed.into_iter().map(known).collect::<Result<Vec<_>, _>>()?;
            listed.sort();
            all.push(listed);
        }
        let (other, one) = (all.pop().unwrap_or_default(), all.pop().unwrap_or_default());
        let keys = |listed: &[(String, Token)]| -> Vec<String> {
            listed.iter().map(|(key, _)| key.clone()).collect()
        };
        // Of more keys than asked for, each may list others.
        ensure(one.len() == most || keys(&one) == keys(&other), || {
            format!("two processes list different keys: {one:?}, {other:?}")
        })?;
        Ok(one)
    }
}

/// The token of a holder; zero if the server does not know it.
type Token = i64;

fn known((key, holder): (String, Holder)) -> Result<(String, Token), Failure> {
    ensure(!holder.holder.is_empty(), || format!("a holder of {key} has no name"))?;
    Ok((key, holder.token))
}

fn ensure_exactly(listed: &[(String, Token)], held: &[(&String, Grant)]) -> Result<(), Failure> {
    let mut held: Vec<(&String, Token)> =
        held.iter().map(|(key, grant)| (*key, grant.token)).collect();
    held.sort();
    let is_same = |((key, token), (held, of_grant)): (&(String, Token), &(&String, Token))| {
        key == *held && (*token == 0 || token == of_grant)
    };
    let fits = listed.len() == held.len() && listed.iter().zip(&held).all(is_same);
    ensure(fits, || format!("listed are {listed:?}, and held {held:?}"))
}
