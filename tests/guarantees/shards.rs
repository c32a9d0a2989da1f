//! One of three shards is killed while all of them are written to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use ekbatan::action::{ErrorKind, Outcome};
use ekbatan::config::{DataSourceConfig, ShardMemberConfig};
use ekbatan::db::ActionId;
use ekbatan::domain::{New, ShardIdentifier};
use ekbatan::prelude::*;
use ekbatan::repository::{Condition, Repository};
use ekbatan::shard::Sharding;
use ekbatan_testkit::PostgresServer;
use support::until;
use support::wallet::{Deposit, DepositMoney, Wallet, WalletError, migrations};
use tokio::task::JoinSet;

use crate::ledger::retry_stale_rows;

const COUNT: usize = 3;
/// The shard that is killed.
const DEAD: usize = 1;
const WALLETS_PER_SHARD: usize = 4;

fn shard(n: usize) -> ShardIdentifier {
    ShardIdentifier::new(0, n as u32).unwrap()
}

struct Shards {
    servers: Vec<PostgresServer>,
    executor: ActionExecutor,
    wallets: Vec<Vec<Id<Wallet>>>,
}

impl Shards {
    async fn start() -> Self {
        let mut servers = Vec::new();
        let mut sources = Vec::new();
        for _ in 0..COUNT {
            let server = PostgresServer::builder().durable().start().await.unwrap();
            sources.push(DataSourceConfig::new(server.create_database().await.unwrap()));
            servers.push(server);
        }
        let mut sources = (0..).zip(sources);
        let (_, first) = sources.next().unwrap();
        let config = sources.fold(EkbatanConfig::from(first), |config, (n, source)| {
            config.shard(shard(n), ShardMemberConfig::new(0, source))
        });
        let databases = Databases::connect(&config).await.unwrap();
        let databases = databases.with_sharding(Sharding::<Wallet>::embedded());
        databases.migrate(&migrations()).await.unwrap();
        let mut wallets = vec![Vec::new(); COUNT];
        for (n, wallets) in wallets.iter_mut().enumerate() {
            for _ in 0..WALLETS_PER_SHARD {
                // The id contains the shard.
                let id = ShardedId::<Wallet>::new(shard(n)).uuid();
                let wallet = Wallet::open(Id::from_uuid(id), "somebody", "EUR");
                let wallet = New::new(Wallet::clone(&wallet), ());
                wallets.push(databases.repository().add(wallet).await.unwrap().id);
            }
        }
        let executor = ActionExecutor::builder(&databases, "tests")
            .model::<Wallet>()
            .retry(retry_stale_rows())
            .build()
            .await
            .unwrap();
        Self { servers, executor, wallets }
    }

    fn wallets(&self) -> Repository<Wallet> {
        self.executor.databases().repository()
    }

    async fn deposit(&self, wallet: Id<Wallet>) -> Result<(), ExecuteError<WalletError>> {
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        self.executor.execute(&DepositMoney, deposit).await.map(drop)
    }
}

impl Shards {
    /// Deposits on the first shard, with a key of this home.
    async fn deposit_with_key(&self, home: usize) -> Result<(), ExecuteError<WalletError>> {
        let keys = (0..1_000).map(|n| format!("key {n}"));
        let mut of_home = keys.filter(|key| self.executor.key_home(None, key) == shard(home));
        let key = of_home.next().expect("every shard is the home of some keys");
        let deposit = Deposit { wallet: self.wallets[0][0], amount: Decimal::ONE };
        self.executor.execute(&DepositMoney, deposit).idempotency_key(key).await.map(drop)
    }
}

/// A deposit and its result.
struct Call {
    shard: usize,
    id: ActionId,
    answer: Result<(), ExecuteError<WalletError>>,
}

async fn deposit_until(
    shards: Arc<Shards>,
    n: usize,
    wallet: Id<Wallet>,
    committed: Arc<[AtomicUsize; COUNT]>,
    over: Arc<AtomicBool>,
) -> Vec<Call> {
    let mut calls = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let deposit = Deposit { wallet, amount: Decimal::ONE };
        let call = shards.executor.execute(&DepositMoney, deposit);
        let id = call.action_id();
        let answer = call.await.map(drop);
        match &answer {
            Ok(()) => drop(committed[n].fetch_add(1, Ordering::Relaxed)),
            // Pause before the next call to the killed server.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
        calls.push(Call { shard: n, id, answer });
    }
    calls
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_shard_affects_no_other_shard_and_recovers_on_postgres() {
    let shards = Arc::new(Shards::start().await);
    let committed: Arc<[AtomicUsize; COUNT]> = Arc::default();
    let over = Arc::new(AtomicBool::new(false));
    let mut tasks = JoinSet::new();
    for (n, wallets) in shards.wallets.iter().enumerate() {
        for wallet in wallets {
            let (committed, over) = (committed.clone(), over.clone());
            tasks.spawn(deposit_until(shards.clone(), n, *wallet, committed, over));
        }
    }
    let counts = || [0, 1, 2].map(|n| committed[n].load(Ordering::Relaxed));
    until("every shard commits", async || counts().iter().all(|count| *count > 50)).await;
    shards.servers[DEAD].kill().await.unwrap();

    let before = counts();
    let others_commit = async || [0, 2].iter().all(|n| counts()[*n] > before[*n] + 200);
    until("the other shards commit", others_commit).await;
    assert_errors_name_the_killed_shard(&shards).await;
    assert_other_shards_respond(&shards).await;

    let before = counts();
    shards.servers[DEAD].restart().await.unwrap();
    until("the restarted shard commits", async || counts()[DEAD] > before[DEAD] + 50).await;
    shards.wallets().find_all().await.unwrap();
    over.store(true, Ordering::Relaxed);
    let calls: Vec<Call> = tasks.join_all().await.into_iter().flatten().collect();
    assert_answers_match_storage(&shards, &calls).await;
}

async fn assert_errors_name_the_killed_shard(shards: &Shards) {
    let address = format!("127.0.0.1:{}", shards.servers[DEAD].port());
    let wallet = shards.wallets[DEAD][0];
    let read = shards.wallets().get(wallet).await.unwrap_err();
    assert!(read.to_string().contains(&address), "{read}");
    let deposit = shards.deposit(wallet).await.unwrap_err();
    assert!(deposit.to_string().contains(&address), "{deposit}");
    match shards.wallets().find_all().await.unwrap_err() {
        ReadError::Shards { failed, answered, .. } => {
            assert_eq!(answered, [shard(0), shard(2)]);
            assert_eq!((failed.len(), failed[0].shard), (1, shard(DEAD)));
            assert!(failed[0].error.to_string().contains(&address), "{}", failed[0].error);
        }
        other => panic!("{other:?}"),
    }
    // The row of a key is on its home. If that is the killed shard, the action does not run.
    let keyed = shards.deposit_with_key(DEAD).await.unwrap_err();
    assert_eq!(keyed.kind(), ErrorKind::Unavailable);
    let keyed = keyed.to_string();
    assert!(
        keyed.contains(&address) && keyed.contains("the home of the idempotency key"),
        "{keyed}"
    );
    // Otherwise the killed shard is not needed, neither by the call nor by its repetition.
    for home in [0, 2, 0, 2] {
        shards.deposit_with_key(home).await.unwrap();
    }
}

async fn assert_other_shards_respond(shards: &Shards) {
    let some = shards.wallets().find_where_reachable(Condition::all()).await.unwrap();
    assert_eq!(some.rows.len(), 2 * WALLETS_PER_SHARD);
    assert_eq!(some.unreachable.len(), 1);
    assert_eq!(some.unreachable[0].shard, shard(DEAD));
    let ids = [shards.wallets[0][0], shards.wallets[2][0]];
    assert_eq!(shards.wallets().find_by_ids(&ids).await.unwrap().len(), 2);
    let deposit = Deposit { wallet: ids[1], amount: Decimal::ONE };
    let call = shards.executor.execute(&DepositMoney, deposit);
    let id = call.action_id();
    call.await.unwrap();
    assert_eq!(shards.executor.outcome(id).await.unwrap(), Outcome::Committed);
    assert_eq!(shards.executor.databases().partial_commits().await.unwrap(), []);
}

/// Checks the results that callers got against the stored rows. A caller whose commit was
/// interrupted by the kill usually gets its result only after the restart, when its lane has
/// settled the commit.
async fn assert_answers_match_storage(shards: &Shards, calls: &[Call]) {
    let mut stored = vec![0; COUNT];
    let mut failures = 0;
    for Call { shard, id, answer } in calls {
        let expected = match answer {
            Ok(()) => Outcome::Committed,
            Err(ExecuteError::CommitUnknown { .. }) => shards.executor.outcome(*id).await.unwrap(),
            Err(_) => Outcome::NotCommitted,
        };
        if answer.is_err() {
            failures += 1;
            assert_eq!(*shard, DEAD, "{answer:?}");
            assert_eq!(shards.executor.outcome(*id).await.unwrap(), expected);
        }
        stored[*shard] += i64::from(expected == Outcome::Committed);
    }
    // The deposit of `assert_other_shards_respond`, and two with keys.
    stored[2] += 1;
    stored[0] += 2;
    for (n, expected) in stored.into_iter().enumerate() {
        let mut versions = 0;
        for wallet in shards.wallets().find_by_ids(&shards.wallets[n]).await.unwrap() {
            assert_eq!(wallet.balance, Decimal::from(wallet.version() - 1));
            versions += wallet.version() - 1;
        }
        assert_eq!(versions, expected, "on shard {n}");
    }
    println!("{} deposits, {failures} of them failed", calls.len());
}
