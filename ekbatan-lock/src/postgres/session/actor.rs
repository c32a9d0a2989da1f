//! The task that a session belongs to: it opens one when there is none. Every request is
//! carried out in a task of its own, so that what was begun is finished whoever was dropped.
//!
//! What always holds: a grant is somebody's or is given back; there is at most one session.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::live::Session;
use super::lock_of;
use crate::postgres::address::Server;
use crate::postgres::hints::Hints;
use crate::{Attempt, BackendError, Grant, GrantRequest, Holder, Released};

/// How often a session that holds something is asked for a sign of life.
const PING: Duration = Duration::from_secs(5);

type Answer<T> = oneshot::Sender<Result<T, BackendError>>;

/// What is asked of the session.
pub(super) enum Request {
    Take { key: String, request: GrantRequest, answer: Answer<Taken> },
    Release { key: String, grant: Grant, answer: Option<Answer<Released>> },
    Inspect { key: String, answer: Answer<Option<Holder>> },
    Force { key: String, answer: Answer<bool> },
    Close { answer: oneshot::Sender<()> },
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
    pub(super) server: Server,
    pub(super) hints: Arc<Hints>,
    pub(super) session: Mutex<Arc<Session>>,
}

impl Common {
    pub(super) fn session(&self) -> Arc<Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The session that there is, or a new one.
    async fn live(&self) -> Result<Arc<Session>, BackendError> {
        let session = self.session();
        if !session.is_over() {
            return Ok(session);
        }
        let opened = Session::open(&self.server, self.hints.clone()).await;
        let session = Arc::new(opened.map_err(|error| BackendError::new(error.to_string()))?);
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session.clone();
        watch(session.clone());
        // Hints may have been missed meanwhile.
        self.hints.tell_all();
        Ok(session)
    }
}

pub(super) fn watch(session: Arc<Session>) {
    tokio::spawn(async move {
        session.watch().await;
        let why = session.ended().await;
        tracing::debug!(why, "a lock session is over");
    });
}

/// Serves requests until nobody can ask any more.
pub(super) async fn serve(
    common: Arc<Common>,
    asked: mpsc::WeakUnboundedSender<Request>,
    mut requests: mpsc::UnboundedReceiver<Request>,
) {
    let mut ping = tokio::time::interval(PING);
    loop {
        let request = tokio::select! {
            request = requests.recv() => request,
            _ = ping.tick() => {
                let session = common.session();
                if !session.is_over() && !session.grants.is_empty() {
                    tokio::spawn(async move { session.ping().await });
                }
                continue;
            }
        };
        match request {
            None => break common.session().end("the locks were dropped".to_owned()),
            Some(Request::Close { answer }) => {
                common.session().end("the locks were closed".to_owned());
                let _ = answer.send(());
                break;
            }
            // What an ended session held is free.
            Some(Request::Release { answer, .. }) if common.session().is_over() => {
                if let Some(answer) = answer {
                    drop(answer.send(Ok(Released { ours: false, wanted: false })));
                }
            }
            Some(request) => {
                let Some(requests) = asked.upgrade() else { continue };
                match common.live().await {
                    Ok(session) => {
                        tokio::spawn(carry_out(session, common.hints.clone(), request, requests));
                    }
                    Err(error) => refuse(request, error),
                }
            }
        }
    }
}

fn refuse(request: Request, error: BackendError) {
    match request {
        Request::Take { answer, .. } => drop(answer.send(Err(error))),
        Request::Release { answer, .. } => drop(answer.map(|answer| answer.send(Err(error)))),
        Request::Inspect { answer, .. } => drop(answer.send(Err(error))),
        Request::Force { answer, .. } => drop(answer.send(Err(error))),
        Request::Close { answer } => {
            let _ = answer.send(());
        }
    }
}

/// Does what is asked, with a session that is there.
pub(super) async fn carry_out(
    session: Arc<Session>,
    hints: Arc<Hints>,
    request: Request,
    requests: mpsc::UnboundedSender<Request>,
) {
    match request {
        Request::Take { key, request, answer } if !answer.is_closed() => {
            let taken = take(&session, &key, &request).await;
            let taken =
                taken.map(|grant| Taken { grant: grant.map(|grant| (key, grant)), requests });
            drop(answer.send(taken));
        }
        Request::Release { key, grant, answer } => {
            let released = release(&session, &hints, &key, &grant).await;
            drop(answer.map(|answer| answer.send(released)));
        }
        Request::Inspect { key, answer } => drop(answer.send(inspect(&session, &key).await)),
        Request::Force { key, answer } => drop(answer.send(force(&session, &hints, &key).await)),
        Request::Take { .. } | Request::Close { .. } => {}
    }
}

async fn take(
    session: &Session,
    key: &str,
    request: &GrantRequest,
) -> Result<Option<Grant>, BackendError> {
    let lock = lock_of(key);
    if !session.grants.ask(lock) {
        return Ok(None);
    }
    match session.take(key, lock).await {
        Ok(Some(token)) => {
            let granted = session.grants.granted(lock, request, token);
            granted.map(Some).ok_or_else(|| BackendError::new("the session ended meanwhile"))
        }
        Ok(None) => {
            session.grants.gone(lock);
            Ok(None)
        }
        Err(error) => {
            // The statement may have failed behind the lock, which it does not give back.
            session.make_sure(lock).await;
            session.grants.gone(lock);
            Err(error)
        }
    }
}

async fn release(
    session: &Session,
    hints: &Hints,
    key: &str,
    grant: &Grant,
) -> Result<Released, BackendError> {
    let lock = lock_of(key);
    if !session.grants.give_back(lock, grant) {
        return Ok(Released { ours: false, wanted: false });
    }
    let wanted = session.give_back(key, lock).await;
    session.grants.gone(lock);
    hints.tell(key);
    Ok(Released { ours: true, wanted: wanted? })
}

async fn inspect(session: &Session, key: &str) -> Result<Option<Holder>, BackendError> {
    let lock = lock_of(key);
    let Some((pid, name, ours)) = session.holder(lock).await? else { return Ok(None) };
    let held = session.grants.held(lock).filter(|_| ours);
    Ok(Some(match held {
        Some(held) => Holder {
            holder: held.holder,
            token: held.grant.token,
            held: Some(held.since.elapsed()),
            remaining: None,
            waiting_here: 0,
        },
        // Of another session the server knows no more.
        None => Holder {
            holder: format!("{name} (session {pid})"),
            token: 0,
            held: None,
            remaining: None,
            waiting_here: 0,
        },
    }))
}

async fn force(session: &Session, hints: &Hints, key: &str) -> Result<bool, BackendError> {
    let lock = lock_of(key);
    if let Some(held) = session.grants.held(lock) {
        return Ok(release(session, hints, key, &held.grant).await?.ours);
    }
    match session.holder(lock).await? {
        None | Some((_, _, true)) => Ok(false),
        Some((pid, name, _)) => Err(BackendError::new(format!(
            "session {pid} ({name}) holds it, and a session's lock can only be given back by \
             that session: release it there, or end all that it holds by \
             `SELECT pg_terminate_backend({pid})`"
        ))),
    }
}
