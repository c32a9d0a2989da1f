//! The task that a session belongs to. While the server answers, requests gather; all that
//! have are carried out in one trip then.
//!
//! What always holds: a grant is somebody's or is given back; there is at most one session;
//! what was begun is finished, whoever was dropped.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::MissedTickBehavior;

use super::grants::Grants;
use super::live::Session;
use super::names::Names;
use crate::mysql::link::Opener;
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, Released};

/// How often a session is asked for a sign of life: nothing tells that it has ended.
const PING: Duration = Duration::from_secs(1);

/// How many requests are carried out at a time.
const AT_A_TIME: usize = 200;

type Answer<T> = oneshot::Sender<Result<T, BackendError>>;

/// What is asked of the session.
pub(super) enum Request {
    Take {
        key: String,
        request: GrantRequest,
        answer: Answer<Taken>,
    },
    Release {
        key: String,
        grant: Grant,
        answer: Option<Answer<Released>>,
    },
    Inspect {
        key: String,
        answer: Answer<Option<Holder>>,
    },
    /// Ends whoever has the key, unless it is not the one any more who is being ended.
    Force {
        key: String,
        ending: Option<i64>,
        answer: Answer<Forced>,
    },
    Close {
        answer: oneshot::Sender<()>,
    },
}

/// What became of an end by force.
pub(super) enum Forced {
    /// Nobody has it any more, and whether somebody was ended.
    Free(bool),
    /// This session was told to end.
    Ending(i64),
}

/// What became of a try. A grant that nobody takes out of it is given back.
pub(super) struct Taken {
    grant: Option<(String, Grant)>,
    requests: mpsc::UnboundedSender<Request>,
}

impl Taken {
    pub(super) fn claim(mut self) -> Attempt {
        match self.grant.take() {
            Some((_, grant)) => Attempt::Granted(grant),
            None => Attempt::Busy(None),
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if let Some((key, grant)) = self.grant.take() {
            // Without the actor there is no session either.
            let _ = self.requests.send(Request::Release { key, grant, answer: None });
        }
    }
}

/// What the actor and those who ask it both see.
pub(super) struct Common {
    pub(super) opener: Arc<Opener>,
    pub(super) names: Names,
    pub(super) grants: Mutex<Arc<Grants>>,
}

impl Common {
    pub(super) fn grants(&self) -> Arc<Grants> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

type Take = (String, GrantRequest, Answer<Taken>);
type Release = (String, Grant, Option<Answer<Released>>);

/// What is carried out together.
#[derive(Default)]
struct Batch {
    releases: Vec<Release>,
    takes: Vec<Take>,
    others: Vec<Request>,
}

impl Batch {
    fn add(&mut self, request: Request) {
        match request {
            Request::Take { key, request, answer } => self.takes.push((key, request, answer)),
            Request::Release { key, grant, answer } => self.releases.push((key, grant, answer)),
            other => self.others.push(other),
        }
    }

    fn len(&self) -> usize {
        self.releases.len() + self.takes.len() + self.others.len()
    }
}

pub(super) struct Actor {
    common: Arc<Common>,
    session: Option<Session>,
    asked: mpsc::WeakUnboundedSender<Request>,
    requests: mpsc::UnboundedReceiver<Request>,
}

impl Actor {
    pub(super) fn new(
        common: Arc<Common>,
        session: Session,
        asked: mpsc::WeakUnboundedSender<Request>,
        requests: mpsc::UnboundedReceiver<Request>,
    ) -> Self {
        Self { common, session: Some(session), asked, requests }
    }

    /// Serves requests until nobody can ask any more.
    pub(super) async fn serve(mut self) {
        let mut ping = tokio::time::interval(PING);
        ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let first = tokio::select! {
                first = self.requests.recv() => first,
                _ = ping.tick() => {
                    if let Some(session) = self.living() {
                        session.ping().await;
                    }
                    continue;
                }
            };
            let Some(first) = first else { return self.close("the locks were dropped").await };
            let mut batch = Batch::default();
            batch.add(first);
            while batch.len() < AT_A_TIME
                && let Ok(next) = self.requests.try_recv()
            {
                batch.add(next);
            }
            self.give_back(batch.releases).await;
            self.take(batch.takes).await;
            for request in batch.others {
                match request {
                    Request::Inspect { key, answer } => {
                        let _ = answer.send(self.inspect(&key).await);
                    }
                    Request::Force { key, ending, answer } => {
                        let _ = answer.send(self.force(key, ending).await);
                    }
                    Request::Close { answer } => {
                        self.close("the locks were closed").await;
                        let _ = answer.send(());
                        return;
                    }
                    Request::Take { .. } | Request::Release { .. } => {}
                }
            }
            if let Some(session) = self.living() {
                session.wish().await;
            }
        }
    }

    /// The session, as long as it lives.
    fn living(&mut self) -> Option<&mut Session> {
        if self.session.as_ref().is_some_and(|session| session.grants().is_over()) {
            // The socket is closed with it.
            self.session = None;
        }
        self.session.as_mut()
    }

    /// The session that there is, or a new one.
    async fn live(&mut self) -> Result<&mut Session, BackendError> {
        if self.living().is_none() {
            let opened = Session::open(&self.common.opener, self.common.names.clone()).await;
            let session = opened.map_err(|error| BackendError::new(error.to_string()))?;
            *self.common.grants.lock().unwrap_or_else(PoisonError::into_inner) = session.grants();
            self.session = Some(session);
        }
        self.session.as_mut().ok_or_else(|| BackendError::new("there is no lock session"))
    }

    async fn close(&mut self, why: &str) {
        if let Some(session) = self.session.take() {
            session.close(why).await;
        }
    }

    async fn give_back(&mut self, releases: Vec<Release>) {
        let (mut keys, mut answers) = (Vec::new(), Vec::new());
        let grants = self.common.grants();
        for (key, grant, answer) in releases {
            // What an ended session held is free; what another grant holds is not this one's.
            if grants.stands(&key, &grant) {
                grants.gave_back(&key);
                keys.push(key.clone());
                answers.push((key, answer));
            } else if let Some(answer) = answer {
                let _ = answer.send(Ok(Released { ours: false, wanted: false }));
            }
        }
        let Some(session) = self.living().filter(|_| !keys.is_empty()) else { return };
        let wanted = session.give_back(&keys).await;
        for (key, answer) in answers {
            let released = match &wanted {
                Ok(wanted) => Ok(Released { ours: true, wanted: wanted.contains(&key) }),
                Err(error) => Err(BackendError::new(error.to_string())),
            };
            drop(answer.map(|answer| answer.send(released)));
        }
    }

    async fn take(&mut self, takes: Vec<Take>) {
        let mut takes: Vec<Take> =
            takes.into_iter().filter(|(_, _, answer)| !answer.is_closed()).collect();
        let Some(requests) = self.asked.upgrade() else { return };
        if takes.is_empty() {
            return;
        }
        let session = match self.live().await {
            Ok(session) => session,
            Err(error) => {
                for (_, _, answer) in takes {
                    let _ = answer.send(Err(BackendError::new(error.to_string())));
                }
                return;
            }
        };
        let grants = session.grants();
        let busy = |answer: Answer<Taken>| {
            let _ = answer.send(Ok(Taken { grant: None, requests: requests.clone() }));
        };
        // A session is granted its own locks again, so a key goes to the server only while
        // nobody here has it, and once.
        let mut asked = BTreeMap::new();
        let mut going = Vec::new();
        for (key, request, answer) in takes.drain(..) {
            if grants.of(&key).is_some() || asked.contains_key(&key) {
                busy(answer);
                continue;
            }
            asked.insert(key.clone(), request.holder.clone());
            going.push((key, request, answer));
        }
        if asked.is_empty() {
            return;
        }
        let mut taken = session.take(&asked).await;
        for (key, request, answer) in going {
            let _ = match taken.remove(&key) {
                Some(Ok(Some(token))) => {
                    let grant = Grant { owner: request.owner, token };
                    grants.granted(&key, grant);
                    let grant = Some((key, grant));
                    answer.send(Ok(Taken { grant, requests: requests.clone() }))
                }
                Some(Ok(None)) => {
                    busy(answer);
                    continue;
                }
                Some(Err(error)) => answer.send(Err(error)),
                None => answer.send(Err(BackendError::new("taking a lock: no answer"))),
            };
        }
    }

    async fn inspect(&mut self, key: &str) -> Result<Option<Holder>, BackendError> {
        self.live().await?.inspect(key).await
    }

    async fn force(&mut self, key: String, ending: Option<i64>) -> Result<Forced, BackendError> {
        let session = self.live().await?;
        let grants = session.grants();
        if grants.of(&key).is_some() {
            grants.gave_back(&key);
            session.give_back(&[key]).await?;
            return Ok(Forced::Free(true));
        }
        Ok(match session.force(&key, ending).await? {
            Some(session) => Forced::Ending(session),
            None => Forced::Free(ending.is_some()),
        })
    }
}
