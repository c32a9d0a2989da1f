//! What operators did with deliveries and jobs: who, why, and how far it went.

use chrono::{DateTime, Utc};
use ekbatan_core::domain::{Id, New};
use ekbatan_macros::{Entity, State};
use uuid::Uuid;

use crate::error::EventsError;

/// What an operator did with the deliveries of a handler, or with a job. It is stored before the first row is
/// changed, and each change counts in the transaction that makes it.
#[derive(Debug, Clone, PartialEq, Entity)]
#[entity(table = "eventlog.interventions")]
#[non_exhaustive]
pub struct Intervention {
    /// The identity.
    pub id: Id<Intervention>,
    /// What was done.
    pub kind: InterventionKind,
    /// The stored name of the handler or the job.
    pub handler: String,
    /// What it was done with: a filter in words, or an id.
    pub subject: String,
    /// The operator.
    pub who: String,
    /// The operator's reason.
    pub why: String,
    /// When it began.
    pub started: DateTime<Utc>,
    /// How many rows were counted before.
    pub counted: i64,
    /// How many rows were changed.
    pub done: i64,
    /// Whether it came to its end.
    pub state: InterventionState,
}

/// What an operator did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
#[non_exhaustive]
pub enum InterventionKind {
    /// A parked delivery was tried again.
    Retry,
    /// Events were delivered once more.
    Replay,
    /// Dead letters were deleted.
    Purge,
    /// A handler or a job was paused on all nodes.
    Pause,
    /// The pause of a handler or a job was ended.
    Resume,
    /// A handler was retired.
    Retire,
    /// A job was run once more.
    Run,
    /// A remote call in doubt was settled.
    Settle,
}

impl InterventionKind {
    /// The kind in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Replay => "replay",
            Self::Purge => "purge",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Retire => "retire",
            Self::Run => "run",
            Self::Settle => "settle",
        }
    }
}

/// How far an intervention went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, State)]
#[non_exhaustive]
pub enum InterventionState {
    /// It has begun. If its process is gone, it stays so; `done` says how far it went.
    Begun,
    /// It came to its end.
    Done,
}

/// The longest reason, in bytes: what a `text` of MySQL holds.
const LONGEST_REASON: usize = 65_535;

/// An operator and a reason, neither of them blank.
#[derive(Debug, Clone, Copy)]
pub struct Operator<'o> {
    pub(crate) who: &'o str,
    pub(crate) why: &'o str,
}

impl<'o> Operator<'o> {
    /// Fails if somebody who reads it later learns nothing, or if not every database can store it.
    pub fn new(who: &'o str, why: &'o str) -> Result<Self, EventsError> {
        let unfit = |what, sentence: String| Err(EventsError::Unfit { what, why: sentence });
        for (what, text) in [("who", who), ("why", why)] {
            if text.trim().is_empty() {
                return unfit(what, "is blank; say it, it is stored with what is done".to_owned());
            }
            if text.contains('\0') {
                let sentence = "holds the character 0, which not every database stores; remove it";
                return unfit(what, sentence.to_owned());
            }
        }
        let length = who.chars().count();
        if length > 255 {
            return unfit("who", format!("has {length} characters; use at most 255"));
        }
        if why.len() > LONGEST_REASON {
            let bytes = why.len();
            return unfit("why", format!("has {bytes} bytes; use at most {LONGEST_REASON}"));
        }
        Ok(Self { who, why })
    }

    /// The row of something that begins.
    pub(crate) fn begins(
        self,
        kind: InterventionKind,
        handler: &str,
        subject: String,
        counted: usize,
        now: DateTime<Utc>,
    ) -> New<Intervention> {
        New::new(self.row(kind, handler, subject, counted, now), ())
    }

    /// The row of something that is done in the transaction that adds the row.
    pub fn did(
        self,
        kind: InterventionKind,
        handler: &str,
        subject: String,
        now: DateTime<Utc>,
    ) -> New<Intervention> {
        let mut row = self.row(kind, handler, subject, 1, now);
        (row.done, row.state) = (1, InterventionState::Done);
        New::new(row, ())
    }

    fn row(
        self,
        kind: InterventionKind,
        handler: &str,
        subject: String,
        counted: usize,
        now: DateTime<Utc>,
    ) -> Intervention {
        Intervention {
            id: Id::from_uuid(Uuid::now_v7()),
            kind,
            handler: handler.to_owned(),
            subject,
            who: self.who.to_owned(),
            why: self.why.to_owned(),
            started: now,
            counted: i64::try_from(counted).unwrap_or(i64::MAX),
            done: 0,
            state: InterventionState::Begun,
        }
    }
}
