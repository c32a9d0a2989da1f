//! The doorbell of a database: tells the nodes of other processes that there is something to
//! handle, and hears when they do.
//!
//! Invariants: nothing relies on it. A signal that is lost only makes nodes find deliveries later,
//! when they look. There is at most one session for each process and database, and it is none that
//! commits data. Without nodes of this process, nothing is opened and nothing is sent.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::doorbell_session::DoorbellSession;
use super::driver::Driver;
use super::{DbError, DbErrorKind};

/// The least time between two signals to other processes.
const GAP: Duration = Duration::from_millis(5);

/// The time after which it is tried again whether there are other processes.
const ALONE: Duration = Duration::from_secs(1);

/// The time after which a session is checked that has been silent.
const SILENT: Duration = Duration::from_secs(60);

/// The time after which a session that does not answer is given up.
const LONGEST_ANSWER: Duration = Duration::from_secs(10);

/// The first and the longest pause before a lost session is opened again.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30));

/// Signals between the processes that use a database.
pub(crate) struct Doorbell(Arc<Shared>);

struct Shared {
    driver: Arc<dyn Driver>,
    members: watch::Sender<Members>,
    /// Changes when this process has something to tell.
    rung: Notify,
    /// Changes when another process has told something, or this one has.
    heard: watch::Sender<()>,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// The nodes of this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Members {
    nodes: usize,
    listeners: usize,
    is_closed: bool,
}

/// A node's part in the doorbell. It ends when this is dropped.
pub struct DoorbellMember {
    shared: Arc<Shared>,
    heard: watch::Receiver<()>,
    listens: bool,
}

impl Doorbell {
    pub(super) fn new(driver: Arc<dyn Driver>) -> Self {
        Self(Arc::new(Shared {
            driver,
            members: watch::Sender::default(),
            rung: Notify::new(),
            heard: watch::Sender::default(),
            task: Mutex::default(),
        }))
    }

    /// Adds a node. As long as there is one, commits of this process ring.
    pub(crate) fn join(&self, listens: bool) -> DoorbellMember {
        let shared = self.0.clone();
        let heard = shared.heard.subscribe();
        shared.members.send_modify(|members| {
            members.nodes += 1;
            members.listeners += usize::from(listens);
        });
        shared.start();
        DoorbellMember { shared, heard, listens }
    }

    /// Says that there is something for the nodes of any process. Waits for nothing.
    pub(crate) fn ring(&self) {
        let members = *self.0.members.borrow();
        if members.nodes > 0 && !members.is_closed {
            self.0.heard.send_replace(());
            self.0.rung.notify_one();
            self.0.start();
        }
    }

    /// Closes the session, for ever.
    pub(super) async fn close(&self) {
        self.0.end();
        let task = self.0.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // It fails only if its runtime has ended, and the session with it.
            let _ = task.await;
        }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl DoorbellMember {
    /// Waits until another process may have committed something to handle, or this one has. Never
    /// returns if the node does not listen.
    pub async fn heard(&mut self) {
        // The sender is in `shared`, so waiting does not fail.
        if !self.listens || self.heard.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for DoorbellMember {
    fn drop(&mut self) {
        self.shared.members.send_modify(|members| {
            members.nodes -= 1;
            members.listeners -= usize::from(self.listens);
        });
    }
}

impl std::fmt::Debug for DoorbellMember {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DoorbellMember").field("listens", &self.listens).finish_non_exhaustive()
    }
}

impl Shared {
    /// Starts the task, also if it has ended with its runtime.
    fn start(self: &Arc<Self>) {
        if self.members.borrow().is_closed {
            return;
        }
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.as_ref().is_none_or(JoinHandle::is_finished)
            && let Ok(runtime) = Handle::try_current()
        {
            *task = Some(runtime.spawn(self.clone().run()));
        }
    }

    fn end(&self) {
        self.members.send_modify(|members| members.is_closed = true);
    }

    async fn run(self: Arc<Self>) {
        let mut members = self.members.subscribe();
        let mut pause = PAUSE.0;
        loop {
            let present = *members.borrow_and_update();
            if present.is_closed {
                return;
            }
            if present.nodes == 0 {
                // The sender is in `self`.
                let _ = members.changed().await;
                continue;
            }
            if present.listeners == 0 && !self.has_rung(&mut members).await {
                continue;
            }
            let listens = present.listeners > 0;
            let opened = tokio::select! {
                opened = timeout(LONGEST_ANSWER, self.driver.doorbell(listens)) => opened,
                _ = members.wait_for(|members| members.is_closed) => return,
            };
            let attended = match opened.unwrap_or_else(|_| Err(no_answer())) {
                Ok(Some(session)) => {
                    pause = PAUSE.0;
                    self.attend(session, listens, &mut members).await
                }
                // The dialect has nothing to tell others by.
                Ok(None) => {
                    let change = |now: &Members| now.is_closed || (now.listeners > 0) != listens;
                    let _ = members.wait_for(change).await;
                    continue;
                }
                Err(error) => Err(error),
            };
            if let Err(error) = attended {
                let address = self.driver.address();
                tracing::debug!(address, %error, "the doorbell is silent; nodes look for events without it");
                tokio::select! {
                    () = sleep(pause.mul_f64(0.5 + fastrand::f64())) => {}
                    _ = members.wait_for(|members| members.is_closed) => return,
                }
                pause = (pause * 2).min(PAUSE.1);
            }
        }
    }

    /// Waits until a session is needed to tell others something; `false` if the members change
    /// before.
    async fn has_rung(&self, members: &mut watch::Receiver<Members>) -> bool {
        tokio::select! {
            () = self.rung.notified() => {
                self.rung.notify_one();
                true
            }
            _ = members.changed() => false,
        }
    }

    /// Uses a session until it is lost, which is an error, or another one is needed.
    async fn attend(
        &self,
        session: Box<dyn DoorbellSession>,
        listens: bool,
        members: &mut watch::Receiver<Members>,
    ) -> Result<(), DbError> {
        let mut ring_at = None;
        let ended = self.ring_and_hear(session, listens, members, &mut ring_at).await;
        if ring_at.is_some() {
            // The next session rings.
            self.rung.notify_one();
        }
        ended
    }

    /// Does the work of [`attend`](Self::attend). `ring_at` is the time of a ring that is due and not sent.
    async fn ring_and_hear(
        &self,
        mut session: Box<dyn DoorbellSession>,
        listens: bool,
        members: &mut watch::Receiver<Members>,
        ring_at: &mut Option<Instant>,
    ) -> Result<(), DbError> {
        // Something may have been told while there was no session.
        self.heard.send_replace(());
        let mut free = Instant::now();
        let mut silent_at = Instant::now() + SILENT;
        loop {
            // Also what has changed while the session was opened.
            let now = *members.borrow_and_update();
            if now.is_closed || now.nodes == 0 || (now.listeners > 0) != listens {
                // A server that does not answer ends the session itself.
                let _ = timeout(LONGEST_ANSWER, session.close()).await;
                return Ok(());
            }
            tokio::select! {
                heard = session.heard() => {
                    heard?;
                    self.heard.send_replace(());
                    silent_at = Instant::now() + SILENT;
                }
                () = self.rung.notified(), if ring_at.is_none() => *ring_at = Some(free),
                () = sleep_until(ring_at.unwrap_or(silent_at)) => {
                    let ringing = async {
                        match ring_at {
                            Some(_) => session.ring(now.nodes).await,
                            None => session.check().await.map(|()| true),
                        }
                    };
                    let rung = timeout(LONGEST_ANSWER, ringing).await;
                    let has_others = rung.unwrap_or_else(|_| Err(no_answer()))?;
                    if ring_at.take().is_some() {
                        free = Instant::now() + if has_others { GAP } else { ALONE };
                    }
                    silent_at = Instant::now() + SILENT;
                }
                _ = members.changed() => {}
            }
        }
    }
}

fn no_answer() -> DbError {
    DbError::new(DbErrorKind::Unavailable, format!("no answer within {LONGEST_ANSWER:?}"))
}
