//! Wrong servers under the same attacks: their histories must be refused. A correct one, with the
//! same code, must not be.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use ekbatan::lock::{
    Attempt, BackendError, Grant, GrantRequest, Holder, LockBackend, LockProvider, Released,
};
use uuid::Uuid;

use super::Attacker;
use crate::history::{Broken, History};
use crate::worker::{Record, note};

/// The time in which a defect must be detected.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a correct server is attacked at least.
const LENGTH: Duration = Duration::from_secs(1);

/// How many holds of a correct server are judged at least.
const ENOUGH: usize = 20;

const PROCESSES: usize = 2;
const TASKS: usize = 4;
const KEYS: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Defect {
    None,
    /// A key is granted although it is taken, now and then.
    GrantsWhatIsTaken,
    /// A grant has the token of the grant before, now and then.
    RepeatsTokens,
    /// Tokens begin anew when a key was released.
    ForgetsTokens,
    /// A release frees the key, also if another holder has it by then.
    ReleasesWhatStands,
    /// A term ends early at the server.
    EndsEarly,
    /// An extension succeeds although the key belongs to another holder.
    ExtendsWhatIsLost,
    /// Extensions are confirmed and forgotten.
    ForgetsExtensions,
}

/// A server in memory, which several providers share.
#[derive(Clone)]
struct WrongServer {
    defect: Defect,
    rows: Arc<Mutex<HashMap<String, Row>>>,
}

struct Row {
    owner: Option<Uuid>,
    token: i64,
    until: Instant,
}

impl Row {
    fn is_of(&self, owner: Uuid) -> bool {
        self.owner == Some(owner) && self.until > Instant::now()
    }

    fn is_taken(&self) -> bool {
        self.owner.is_some() && self.until > Instant::now()
    }
}

#[async_trait]
impl LockBackend for WrongServer {
    fn name(&self) -> &'static str {
        "in memory"
    }

    async fn try_grant(&self, key: &str, request: &GrantRequest) -> Result<Attempt, BackendError> {
        let mut rows = self.rows.lock().unwrap();
        let until = Instant::now();
        let row = rows.entry(key.to_owned()).or_insert(Row { owner: None, token: 0, until });
        let now_and_then = row.token % 5 == 4;
        if row.is_taken() && !(self.defect == Defect::GrantsWhatIsTaken && now_and_then) {
            return Ok(Attempt::Busy(Some(row.until - Instant::now())));
        }
        if !(self.defect == Defect::RepeatsTokens && now_and_then && row.owner.is_none()) {
            row.token += 1;
        }
        row.owner = Some(request.owner);
        let early = if self.defect == Defect::EndsEarly { 2 } else { 1 };
        row.until = Instant::now() + request.term / early;
        Ok(Attempt::Granted(Grant { owner: request.owner, token: row.token }))
    }

    async fn extend(&self, key: &str, grant: &Grant, term: Duration) -> Result<bool, BackendError> {
        let mut rows = self.rows.lock().unwrap();
        let row = rows.get_mut(key).expect("a row of a grant stays");
        if self.defect == Defect::ExtendsWhatIsLost {
            return Ok(true);
        }
        if !row.is_of(grant.owner) {
            return Ok(false);
        }
        if self.defect != Defect::ForgetsExtensions {
            row.until = Instant::now() + term;
        }
        Ok(true)
    }

    async fn set_term(
        &self,
        key: &str,
        grant: &Grant,
        term: Duration,
    ) -> Result<bool, BackendError> {
        self.extend(key, grant, term).await
    }

    async fn release(&self, key: &str, grant: &Grant) -> Result<Released, BackendError> {
        let mut rows = self.rows.lock().unwrap();
        let Some(row) = rows.get_mut(key) else {
            return Ok(Released { ours: false, wanted: false });
        };
        let ours = row.is_of(grant.owner);
        if row.owner == Some(grant.owner) || self.defect == Defect::ReleasesWhatStands {
            row.owner = None;
            if self.defect == Defect::ForgetsTokens {
                row.token = 0;
            }
        }
        Ok(Released { ours, wanted: true })
    }

    async fn inspect(&self, key: &str) -> Result<Option<Holder>, BackendError> {
        let rows = self.rows.lock().unwrap();
        let taken = rows.get(key).filter(|row| row.is_taken());
        Ok(taken.map(|row| Holder::new("somebody", row.token).owner(row.owner.unwrap_or_default())))
    }

    async fn force_release(
        &self,
        key: &str,
        seen: &Grant,
        _why: &str,
    ) -> Result<bool, BackendError> {
        let mut rows = self.rows.lock().unwrap();
        let Some(row) = rows.get_mut(key).filter(|row| row.is_of(seen.owner)) else {
            return Ok(false);
        };
        row.owner = None;
        Ok(true)
    }

    fn frees_by_itself(&self) -> bool {
        true
    }

    fn poll_interval(&self) -> Duration {
        Duration::from_millis(2)
    }
}

/// Attacks until the history is refused, or for as long as a correct server is attacked, and until there is
/// something to judge.
async fn attacked(defect: Defect) -> Result<History, Broken> {
    let record = Record::default();
    let rows = Arc::default();
    let stopped = Arc::new(AtomicBool::new(false));
    let mut random = fastrand::Rng::with_seed(17);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..PROCESSES {
        let server = WrongServer { defect, rows: Arc::clone(&rows) };
        let record = record.clone();
        let attacker = Attacker {
            locks: LockProvider::new(server, "test"),
            depositor: None,
            observe: Arc::new(move |observation| note(&record, observation)),
            keys: KEYS,
        };
        for _ in 0..TASKS {
            tasks.spawn(attacker.clone().attack(random.fork(), stopped.clone()));
        }
    }
    let started = Instant::now();
    let is_attacked_enough = || {
        let history = record.lock().unwrap();
        defect == Defect::None
            && started.elapsed() >= LENGTH
            && history.holds.len() > ENOUGH
            && !history.forces.is_empty()
    };
    let mut judged = Ok(());
    while judged.is_ok() && started.elapsed() < PATIENCE && !is_attacked_enough() {
        tokio::time::sleep(Duration::from_millis(100)).await;
        judged = record.lock().unwrap().check();
    }
    stopped.store(true, Ordering::SeqCst);
    tasks.join_all().await;
    let history = record.lock().unwrap().clone();
    // Some holds were recorded only when the callers stopped.
    judged.and_then(|()| history.check()).map(|()| history)
}

macro_rules! wrong_servers {
    ($($test:ident: $defect:ident is $broken:pat),+ $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                let broken = attacked(Defect::$defect).await.expect_err("the defect is detected");
                assert!(matches!(broken, $broken), "{broken}");
            }
        )+
    };
}

wrong_servers! {
    a_server_that_grants_taken_keys_is_detected: GrantsWhatIsTaken
        is Broken::TwoHolders(_) | Broken::TokenFell { .. },
    a_server_that_repeats_tokens_is_detected: RepeatsTokens is Broken::GrantedTwice { .. },
    a_server_that_forgets_tokens_is_detected: ForgetsTokens
        is Broken::GrantedTwice { .. } | Broken::TokenFell { .. },
    a_server_that_releases_for_others_is_detected: ReleasesWhatStands
        is Broken::TwoHolders(_) | Broken::TokenFell { .. },
    a_server_that_ends_terms_early_is_detected: EndsEarly
        is Broken::TwoHolders(_) | Broken::TokenFell { .. },
    a_server_that_extends_lost_grants_is_detected: ExtendsWhatIsLost is Broken::TwoHolders(_),
    a_server_that_forgets_extensions_is_detected: ForgetsExtensions
        is Broken::TwoHolders(_) | Broken::TokenFell { .. },
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_correct_server_is_accepted() {
    let history = attacked(Defect::None).await.unwrap_or_else(|broken| panic!("{broken}"));
    assert!(history.holds.len() > ENOUGH && !history.forces.is_empty(), "{}", history.holds.len());
}
