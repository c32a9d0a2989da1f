//! Calls for later: what an action says of a call that it enqueues.

use std::time::Duration;

use chrono::{DateTime, Datelike, Utc};

use super::params::stored_params;
use super::{Action, ActionPlan, PlanError};
use crate::outbox::{CallRecord, EnqueueStep, Priority};

/// The last year of which every database stores dates.
const LAST_YEAR: i32 = 9999;

/// A call that an action has enqueued. Its methods say when it runs and what it waits for.
pub struct EnqueuedCall<'p> {
    plan: &'p mut ActionPlan,
    action: &'static str,
    /// Where the call stands in the plan.
    at: usize,
}

impl ActionPlan {
    /// Enqueues a call of an action: a [node](https://docs.rs/ekbatan-events) executes it later, also in
    /// another process. It is committed with the rows of this action, or not at all.
    ///
    /// The commit of the called action removes the call, so what it writes is in the database exactly
    /// once, however often it runs. If it fails, it is tried again as an event is.
    ///
    /// The call is stored on the shard that commits first, and the called action has to write there. If this
    /// action writes no rows, that is the shard on which it checks rows, otherwise the default shard.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_core::action::*;
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Debug, Clone, Serialize, Deserialize)] pub struct Reminder { wallet: String }
    /// # pub struct RemindOwner;
    /// # impl Action for RemindOwner {
    /// #     const NAME: &'static str = "RemindOwner";
    /// #     type Params = Reminder; type Output = (); type Error = std::convert::Infallible;
    /// #     async fn perform(&self, _: &mut ActionContext<'_>, _: &Reminder) -> Result<(), Self::Error> { Ok(()) }
    /// # }
    /// # fn example(ctx: &mut ActionContext<'_>, wallet: String) {
    /// let tomorrow = Duration::from_secs(24 * 60 * 60);
    /// let reminder = Reminder { wallet: wallet.clone() };
    /// ctx.plan().enqueue(&RemindOwner, reminder).after(tomorrow).unique(wallet);
    /// # }
    /// ```
    pub fn enqueue<A: Action>(&mut self, action: &A, params: A::Params) -> EnqueuedCall<'_> {
        // The action says which one is meant; the node has its own.
        let _ = action;
        let params = match stored_params::<A>(&params) {
            Ok(params) => params,
            Err(error) => {
                self.fail(error);
                String::new()
            }
        };
        let call = CallRecord {
            action: A::NAME,
            params,
            due: None,
            priority: Priority::default(),
            unique: None,
            in_turn: None,
        };
        let at = self.calls.len();
        self.calls.push(EnqueueStep::Enqueue(call));
        EnqueuedCall { plan: self, action: A::NAME, at }
    }

    /// Cancels the last call of an action that was enqueued with this [unique](EnqueuedCall::unique) key.
    /// Either the commit of the called action came before, or it never comes: a run that is under way cannot
    /// commit any more. If no such call waits or runs, nothing happens.
    ///
    /// An earlier call with this key, which a node had claimed when the last one was enqueued, is not
    /// cancelled: also if its run fails and is tried again.
    ///
    /// Only the shard is looked at that commits this action first.
    pub fn cancel<A: Action>(&mut self, action: &A, key: impl Into<String>) {
        let _ = action;
        let key = self.checked(A::NAME, key.into());
        self.calls.push(EnqueueStep::Cancel { action: A::NAME, key });
    }

    /// A key of enqueued calls. An empty one is most likely a mistake.
    fn checked(&mut self, action: &'static str, key: String) -> String {
        if key.is_empty() {
            self.fail(PlanError::EmptyKey { action });
        }
        key
    }
}

impl EnqueuedCall<'_> {
    /// Lets the call run at this time, or as soon as possible if it has passed.
    pub fn at(self, time: DateTime<Utc>) -> Self {
        if time.year() > LAST_YEAR {
            return self.too_late(time.to_string());
        }
        // A time that has passed may be one that no database stores.
        let due = Some(time).filter(|time| *time > self.plan.now);
        self.set(|call| call.due = due)
    }

    /// Lets the call run after this time, counted from the begin of this action.
    pub fn after(self, time: Duration) -> Self {
        let due = chrono::Duration::from_std(time);
        match due.ok().and_then(|time| self.plan.now.checked_add_signed(time)) {
            Some(due) => self.at(due),
            None => self.too_late(format!("{time:?} from now")),
        }
    }

    /// Lets the call begin before those of the action with a lower priority, if both are due. What runs is not
    /// interrupted. A low call runs only when no others are due, so it may wait for long.
    ///
    /// A call that is tried again keeps its priority. One that is [in turn](Self::in_turn) waits for the
    /// earlier ones, whatever their priority.
    pub fn priority(self, priority: Priority) -> Self {
        self.set(|call| call.priority = priority)
    }

    /// Enqueues the call only if no other call of the action with this key waits. The other one stays as
    /// it is, also in its time and priority, and runs after the commit of this action.
    ///
    /// A call that a node has claimed, or that was given up, does not wait. A node with a `concurrency` or a
    /// `rate` claims some calls before it begins them.
    pub fn unique(self, key: impl Into<String>) -> Self {
        let key = self.plan.checked(self.action, key.into());
        self.set(|call| call.unique = Some(key))
    }

    /// Lets the calls of the action that have this key run one after another, in the order in which they
    /// were enqueued. One that fails or waits for its time lets those behind it wait.
    ///
    /// Actions that enqueue calls with the same key at the same time conflict, and one of them is retried.
    pub fn in_turn(self, key: impl Into<String>) -> Self {
        let key = self.plan.checked(self.action, key.into());
        self.set(|call| call.in_turn = Some(key))
    }

    fn too_late(self, due: String) -> Self {
        self.plan.fail(PlanError::TooLate { action: self.action, due });
        self
    }

    fn set(self, set: impl FnOnce(&mut CallRecord)) -> Self {
        if let Some(EnqueueStep::Enqueue(call)) = self.plan.calls.get_mut(self.at) {
            set(call);
        }
        self
    }
}

impl std::fmt::Debug for EnqueuedCall<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("EnqueuedCall").field(&self.plan.calls.get(self.at)).finish()
    }
}
