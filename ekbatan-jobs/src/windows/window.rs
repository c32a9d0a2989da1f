//! The row of a window, and its events.

use chrono::{DateTime, Utc};
use ekbatan_core::action::ActionPlan;
use ekbatan_core::domain::{Changed, ShardIdentifier, ShardedId, Stored};
use ekbatan_macros::{Event, Model, State};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// A window of one participant: rows come in until its cutoff.
///
/// Its id follows from the series, the participant and the key, so that an action that adds a row can
/// [compute](Self::id_of) it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Model)]
#[model(table = "eventlog.windows", event = WindowEvent, name = "Window")]
#[non_exhaustive]
pub struct Window {
    /// The identity. It carries the shard.
    pub id: ShardedId<Window>,
    /// The [name](crate::windows::WindowSeries::NAME) of the series.
    pub series: String,
    /// Whose rows they are.
    pub participant: String,
    /// What the participant calls the window, such as `STR-D0-17h00`. It never comes again.
    #[column(name = "window_key")]
    pub key: String,
    /// Before this instant it does not close.
    pub cutoff: DateTime<Utc>,
    /// When it began to close, by the clock of the database.
    pub closing_date: Option<DateTime<Utc>>,
    /// When it was closed, by the clock of the database.
    pub closed_date: Option<DateTime<Utc>>,
    /// How many chunks were batched.
    pub chunks: i64,
    /// How many rows are in them.
    pub batched: i64,
    /// Whether rows come in.
    pub state: WindowState,
}

/// How far a window is. It never goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, State)]
#[non_exhaustive]
pub enum WindowState {
    /// Rows come in.
    Open,
    /// No row comes in any more; what has come in is batched.
    Closing,
    /// Everything is batched.
    Closed,
}

/// What happens to a window.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Event)]
#[non_exhaustive]
pub enum WindowEvent {
    /// It was opened.
    #[event(name = "WindowOpened")]
    Opened {
        /// The series.
        series: String,
        /// The participant.
        participant: String,
        /// The key of the window.
        key: String,
        /// When it will begin to close.
        cutoff: DateTime<Utc>,
    },
    /// It has begun to close.
    #[event(name = "WindowClosing")]
    Closing {
        /// The series.
        series: String,
        /// The participant.
        participant: String,
        /// The key of the window.
        key: String,
        /// When, by the clock of the database.
        closing_date: DateTime<Utc>,
    },
    /// It is closed: no further batch follows.
    #[event(name = "WindowClosed")]
    Closed {
        /// The series.
        series: String,
        /// The participant.
        participant: String,
        /// The key of the window.
        key: String,
        /// How many chunks were batched.
        chunks: i64,
        /// How many rows are in them.
        batched: i64,
    },
}

/// A window that is to be opened.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[must_use = "a window is opened by `Windows::open`, or by the job"]
pub struct NewWindow {
    pub(super) shard: ShardIdentifier,
    pub(super) participant: String,
    pub(super) key: String,
    pub(super) cutoff: DateTime<Utc>,
}

impl NewWindow {
    /// A window of a participant on shard 0/0, the only one if there is one database.
    pub fn new(
        participant: impl Into<String>,
        key: impl Into<String>,
        cutoff: DateTime<Utc>,
    ) -> Self {
        let (shard, participant, key) = (ShardIdentifier::DEFAULT, participant.into(), key.into());
        Self { shard, participant, key, cutoff }
    }

    /// Puts the window on a shard: the one of the participant's rows.
    pub fn on(mut self, shard: ShardIdentifier) -> Self {
        self.shard = shard;
        self
    }
}

impl Window {
    /// The id of a window on shard 0/0, the only one if there is one database.
    pub fn id_of(series: &str, participant: &str, key: &str) -> ShardedId<Window> {
        Self::id_on(ShardIdentifier::DEFAULT, series, participant, key)
    }

    /// The id of a window on a shard.
    pub fn id_on(
        shard: ShardIdentifier,
        series: &str,
        participant: &str,
        key: &str,
    ) -> ShardedId<Window> {
        let mut hash = Sha256::new();
        for text in [series, participant, key] {
            hash.update((text.len() as u64).to_be_bytes());
            hash.update(text);
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash.finalize()[..16]);
        // Version 7 and the variant, and then the shard, as in every id that carries one.
        let shard = u128::from(shard.group()) << 54 | u128::from(shard.member()) << 48;
        let fixed = 0xF << 76 | 0xFFFF << 48;
        let bits = u128::from_be_bytes(bytes) & !fixed | 0x7 << 76 | 0b10 << 62 | shard;
        ShardedId::from_uuid(Uuid::from_u128(bits))
    }

    /// Whether a row may be added to the window. If so, the plan commits only while the window is
    /// open: otherwise it is stale, and the action runs again and finds the window closing. Locks
    /// nothing.
    ///
    /// ```
    /// # use ekbatan_core::action::{Action, ActionContext};
    /// # use ekbatan_core::domain::{Id, New, ShardedId};
    /// # use ekbatan_core::repository::ReadError;
    /// # use ekbatan_jobs::windows::Window;
    /// # use ekbatan_macros::{Entity, State};
    /// # use serde::{Deserialize, Serialize};
    /// # #[derive(Debug, Clone, Copy, PartialEq, State)] pub enum OrderState { Pending, RejectedCutoff }
    /// # #[derive(Debug, Clone, Entity)]
    /// # #[entity(table = "orders")]
    /// # pub struct Order { pub id: Id<Order>, pub window: ShardedId<Window>, pub state: OrderState }
    /// # #[derive(Serialize, Deserialize)] pub struct NewOrder { bank: String, window: String }
    /// # pub struct AcceptOrder;
    /// # impl Action for AcceptOrder {
    /// # const NAME: &'static str = "orders.accept"; type Params = NewOrder; type Output = (); type Error = ReadError;
    /// async fn perform(&self, ctx: &mut ActionContext<'_>, order: &NewOrder) -> Result<(), ReadError> {
    ///     let window = ctx.get(Window::id_of("settlement", &order.bank, &order.window)).await?;
    ///     let is_in_time = Window::admits(&window, ctx.plan());
    ///     let state = if is_in_time { OrderState::Pending } else { OrderState::RejectedCutoff };
    ///     let order = Order { id: ctx.new_id(), window: window.id, state };
    ///     ctx.plan().add(New::new(order, ()));
    ///     Ok(())
    /// }
    /// # }
    /// ```
    #[must_use = "`false` means that the row is late and must not be added to the window"]
    pub fn admits(window: &Stored<Window>, plan: &mut ActionPlan) -> bool {
        let is_open = window.state == WindowState::Open;
        // What has begun to close never opens again.
        if is_open {
            plan.expect_unlocked(window);
        }
        is_open
    }

    pub(super) fn open(series: &str, new: &NewWindow) -> (Self, WindowEvent) {
        let NewWindow { shard, participant, key, cutoff } = new.clone();
        let series = series.to_owned();
        let window = Self {
            id: Self::id_on(shard, &series, &participant, &key),
            series: series.clone(),
            participant: participant.clone(),
            key: key.clone(),
            cutoff,
            closing_date: None,
            closed_date: None,
            chunks: 0,
            batched: 0,
            state: WindowState::Open,
        };
        (window, WindowEvent::Opened { series, participant, key, cutoff })
    }

    fn begin_closing(&mut self, date: DateTime<Utc>) -> WindowEvent {
        (self.state, self.closing_date) = (WindowState::Closing, Some(date));
        let (series, participant, key) = self.names();
        WindowEvent::Closing { series, participant, key, closing_date: date }
    }

    fn finish_closing(&mut self, date: DateTime<Utc>) -> WindowEvent {
        (self.state, self.closed_date) = (WindowState::Closed, Some(date));
        let (series, participant, key) = self.names();
        let (chunks, batched) = (self.chunks, self.batched);
        WindowEvent::Closed { series, participant, key, chunks, batched }
    }

    fn names(&self) -> (String, String, String) {
        (self.series.clone(), self.participant.clone(), self.key.clone())
    }
}

/// The changes of a window, each from the state that it needs. `None` in another state: somebody was
/// faster.
pub(super) trait WindowChanges {
    fn begun_to_close(self, date: DateTime<Utc>) -> Option<Changed<Window>>;
    fn batched(self, chunk: i64, rows: u64) -> Option<Changed<Window>>;
    fn closed(self, date: DateTime<Utc>) -> Option<Changed<Window>>;
}

impl WindowChanges for Stored<Window> {
    fn begun_to_close(self, date: DateTime<Utc>) -> Option<Changed<Window>> {
        let is_open = self.state == WindowState::Open;
        is_open.then(|| self.apply(|window| window.begin_closing(date)))
    }

    fn batched(self, chunk: i64, rows: u64) -> Option<Changed<Window>> {
        let is_next = self.state == WindowState::Closing && self.chunks == chunk;
        is_next.then(|| {
            self.apply(|window| {
                window.chunks += 1;
                window.batched = window.batched.saturating_add_unsigned(rows);
            })
        })
    }

    fn closed(self, date: DateTime<Utc>) -> Option<Changed<Window>> {
        let is_closing = self.state == WindowState::Closing;
        is_closing.then(|| self.apply(|window| window.finish_closing(date)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_window_follows_from_its_names_and_carries_its_shard() {
        let shard = ShardIdentifier::new(255, 63).unwrap();
        let id = Window::id_on(shard, "settlement", "bank", "17h00");
        assert_eq!(id.shard(), Some(shard));
        assert_eq!(id, Window::id_on(shard, "settlement", "bank", "17h00"));
        assert_eq!(Window::id_of("a", "b", "c").shard(), Some(ShardIdentifier::DEFAULT));
        let others = [
            Window::id_of("settlement", "bank", "17h00"),
            Window::id_of("settlementbank", "", "17h00"),
            Window::id_of("settlement", "bank1", "7h00"),
            Window::id_of("", "settlementbank", "17h00"),
        ];
        let different: std::collections::HashSet<_> = others.iter().collect();
        assert_eq!(different.len(), others.len());
    }
}
