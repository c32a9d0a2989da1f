//! Where a call's strategy comes from, and what each strategy needs.

use ekbatan::action::{BuildError, Coalesced, ContentionError, ErrorKind, Pessimistic};
use ekbatan::domain::ShardIdentifier;
use ekbatan::lock::LockKey;
use ekbatan::prelude::*;
use ekbatan_testkit::TempSqlite;
use support::wallet;

use crate::acts::{Groups, Nothing, Refused};

/// Changes nothing; names the strategy and the key that it is given.
struct Chooses(Option<Contention>, Option<LockKey>);

impl Action for Chooses {
    const NAME: &'static str = "contention.chooses";
    type Params = Nothing;
    type Output = ();
    type Error = Refused;

    async fn perform(&self, _: &mut ActionContext<'_>, _: &Nothing) -> Result<(), Refused> {
        Ok(())
    }

    fn contention_keys(&self, _: &Nothing) -> Vec<LockKey> {
        self.1.iter().cloned().collect()
    }

    fn contention(&self) -> Option<Contention> {
        self.0.clone()
    }
}

async fn databases() -> (TempSqlite, Databases) {
    let file = TempSqlite::new().unwrap();
    let databases = Databases::open(&file.url()).await.unwrap();
    databases.migrate(&wallet::migrations()).await.unwrap();
    (file, databases)
}

#[tokio::test]
async fn a_strategy_without_a_key_is_an_error_with_advice() {
    let (_file, databases) = databases().await;
    let executor = ActionExecutor::builder(&databases, "tests").build().await.unwrap();
    let chosen = Chooses(Some(Contention::coalesced()), None);
    let error = executor.execute(&chosen, Nothing {}).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Contention);
    assert_eq!(
        error.to_string(),
        "the strategy of `contention.chooses` needs a key, and there is none; implement \
         `Action::contention_keys`, or set one by `.contention_keys(..)`"
    );
    let key = LockKey::named("a");
    executor.execute(&chosen, Nothing {}).contention_keys([key.clone()]).await.unwrap();
    // The call overrides the action.
    executor.execute(&chosen, Nothing {}).contention(Contention::Optimistic).await.unwrap();
    let by_call = executor.execute(&Chooses(None, None), Nothing {});
    let error = by_call.contention(Contention::coalesced()).await.unwrap_err();
    assert!(matches!(error, ExecuteError::Contention(ContentionError::NoKey { .. })));
    executor.execute(&Chooses(Some(Contention::coalesced()), Some(key)), Nothing {}).await.unwrap();
}

#[tokio::test]
async fn the_default_strategy_ignores_calls_without_a_key() {
    let (_file, databases) = databases().await;
    let (groups, _counting) = Groups::count();
    let builder = ActionExecutor::builder(&databases, "tests").contention(Contention::coalesced());
    let executor = builder.build().await.unwrap();
    executor.execute(&Chooses(None, None), Nothing {}).await.unwrap();
    assert_eq!(groups.sizes(), [0; 0]);
}

#[tokio::test]
async fn a_strategy_with_leases_needs_a_source_of_leases() {
    let (_file, databases) = databases().await;
    let builder = ActionExecutor::builder(&databases, "tests");
    let error = builder.contention(Contention::pessimistic()).build().await.err();
    assert!(matches!(error, Some(BuildError::NoLeases)), "{error:?}");
    let executor = ActionExecutor::builder(&databases, "tests").build().await.unwrap();
    let leased = Coalesced::default().under_lease(Pessimistic::default());
    for contention in [Contention::pessimistic(), leased.into()] {
        let action = Chooses(None, Some(LockKey::named("a")));
        let call = executor.execute(&action, Nothing {});
        let error = call.contention(contention).await.unwrap_err();
        assert!(matches!(error, ExecuteError::Contention(ContentionError::NoLeases { .. })));
    }
}

#[test]
fn a_key_of_a_sharded_id_knows_its_shard() {
    let shard = ShardIdentifier::new(3, 1).unwrap();
    let id: ShardedId<wallet::Wallet> = ShardedId::new(shard);
    let key = LockKey::of("wallet", id);
    assert_eq!((key.shard(), key.id()), (Some(shard), &*format!("wallet:{id}")));
    assert_eq!(LockKey::of("wallet", 7).shard(), None);
}
