//! Hints that a key may be free, from a server that does not notify: one task for all keys that
//! this process waits for.
//!
//! A key that was asked for a moment ago, or that changed hands a moment ago, is looked at soon
//! and often. The longer nothing happens to it, the longer the pause: a third of that time, at
//! most [`Pace::longest`]. One look is one round trip for all keys whose turn has come or comes
//! soon, so that the number of keys does not change the number of trips.
//!
//! Invariants: a hint reaches every waiter that listened before the look. While nobody listens,
//! there is no task. If a look fails, all waiters are woken, and find out for themselves. If the
//! runtime of the task stands still, the runtime of a waiter begins another task.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use crate::BackendError;

/// How late the task may be for a look before another task is begun.
const LATE: Duration = Duration::from_secs(1);

/// Longer than a look takes, also if it waits for a connection and the server does not answer.
const LONGEST_LOOK: Duration = Duration::from_secs(30);

/// A key as the server sees it, for waiters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyState {
    /// The key.
    pub key: String,
    /// Changes when the key changes hands, such as the token of its last grant.
    pub grant: i64,
    /// The rest of its term, if the server ends terms. `Some(Duration::ZERO)` if it is free.
    pub remaining: Option<Duration>,
}

/// What a [`KeyPoller`] asks a server.
#[async_trait]
pub trait KeyStates: Send + Sync + 'static {
    /// The states of the keys, in one round trip. A key that is left out is free. Also renews
    /// the marks that these keys are wanted, if the server keeps marks.
    async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError>;

    /// Whether anything has changed since this was last asked, if that can be told without a
    /// round trip.
    async fn changed(&self) -> Option<bool> {
        None
    }
}

/// How often a [`KeyPoller`] looks.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    first: Duration,
    longest: Duration,
}

impl Pace {
    /// The first pause, for a key that was just asked for, and the longest.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest }
    }
}

/// Looks at a server for all keys that somebody listens to. A backend uses it for
/// [`LockBackend::freed`](crate::LockBackend::freed).
pub struct KeyPoller {
    watch: Arc<Watch>,
}

struct Watch {
    server: Box<dyn KeyStates>,
    pace: Pace,
    keys: Mutex<Keys>,
    /// Notified when a key is busy, and when nobody listens any more.
    changed: Notify,
}

#[derive(Default)]
struct Keys {
    listened: HashMap<String, Listened>,
    /// When the task counts as late, if there is one, and the number of tasks so far.
    late_at: Option<Instant>,
    task: u64,
}

struct Listened {
    notify: Arc<Notify>,
    count: usize,
    /// When something last happened to the key.
    since: Instant,
    grant: Option<i64>,
    /// When to look next; `None` until the key is known to be busy.
    next: Option<Instant>,
    /// The pause before that.
    pause: Duration,
    /// Whether it was never looked at.
    new: bool,
    /// When its term ends, as far as the last look showed.
    ends_at: Option<Instant>,
}

impl KeyPoller {
    /// A poller without a task: the first key that is busy starts one.
    pub fn new(server: impl KeyStates, pace: Pace) -> Self {
        let (keys, changed) = (Mutex::default(), Notify::new());
        Self { watch: Arc::new(Watch { server: Box::new(server), pace, keys, changed }) }
    }

    /// Resolves when a look shows that the key may be free. Listens from the first poll.
    pub async fn freed(&self, key: &str) {
        let listening = self.watch.listen(key);
        let mut freed = pin!(listening.notify.notified());
        while timeout(LATE, freed.as_mut()).await.is_err() {
            self.watch.replace_late_task();
        }
    }

    /// Begins to look at the key, if somebody listens. A backend calls this when a try has
    /// found the key busy, so that a free key costs no look.
    pub fn busy(&self, key: &str) {
        self.watch.busy(key);
    }
}

impl Watch {
    fn keys(&self) -> MutexGuard<'_, Keys> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn listen<'w>(self: &'w Arc<Self>, key: &'w str) -> Listening<'w> {
        let mut keys = self.keys();
        let listened = keys.listened.entry(key.to_owned()).or_insert_with(|| Listened {
            notify: Arc::default(),
            count: 0,
            since: Instant::now(),
            grant: None,
            next: None,
            pause: self.pace.first,
            new: true,
            ends_at: None,
        });
        listened.count += 1;
        Listening { watch: self, key, notify: listened.notify.clone() }
    }

    fn busy(self: &Arc<Self>, key: &str) {
        let (mut keys, now) = (self.keys(), Instant::now());
        let Some(listened) = keys.listened.get_mut(key).filter(|it| it.next.is_none()) else {
            return;
        };
        listened.since = now;
        listened.next = Some(now + self.pace.first);
        if keys.late_at.is_some() {
            self.changed.notify_one();
        } else {
            self.begin_task(keys);
        }
    }

    /// Begins a task in this runtime. An earlier one ends when it continues.
    fn begin_task(self: &Arc<Self>, mut keys: MutexGuard<'_, Keys>) {
        keys.late_at = Some(Instant::now() + LATE);
        keys.task += 1;
        // The runtime may end before the task does; the next busy key starts another one.
        let running = Running { watch: self.clone(), task: keys.task };
        // A runtime that ends drops the task at once, which locks the keys.
        drop(keys);
        tokio::spawn(async move { poll(&running).await });
    }

    fn replace_late_task(self: &Arc<Self>) {
        let mut keys = self.keys();
        if keys.late_at.is_some_and(|late_at| late_at <= Instant::now()) {
            // A change is reported once, and the late task may have asked for it.
            keys.listened.values_mut().for_each(|listened| listened.new = true);
            self.begin_task(keys);
        }
    }

    /// When the next look is due; `None` ends the task, because nobody waits, or because there is
    /// a later task.
    fn next(&self, task: u64) -> Option<Instant> {
        let mut keys = self.keys();
        if keys.task != task {
            return None;
        }
        let next = keys.listened.values().filter_map(|listened| listened.next).min();
        keys.late_at = next.map(|next| next + LATE);
        next
    }

    /// The keys whose turn has come or comes soon, and whether a look is needed even if nothing
    /// has changed at the server.
    fn due(&self) -> (Vec<String>, bool) {
        let (mut keys, now) = (self.keys(), Instant::now());
        let soon = |listened: &Listened| now + listened.pause.mul_f64(0.75);
        let due = |listened: &Listened| listened.next.is_some_and(|next| next <= soon(listened));
        let due: Vec<_> = keys.listened.iter().filter(|(_, listened)| due(listened)).collect();
        let ends = |listened: &Listened| listened.ends_at.is_some_and(|at| at <= soon(listened));
        let must_look = due.iter().any(|(_, listened)| listened.new || ends(listened));
        let due = due.into_iter().map(|(key, _)| key.clone()).collect();
        if let Some(late_at) = &mut keys.late_at {
            *late_at = now + LONGEST_LOOK;
        }
        (due, must_look)
    }

    fn all(&self) -> Vec<String> {
        let keys = self.keys();
        let busy = keys.listened.iter().filter(|(_, listened)| listened.next.is_some());
        busy.map(|(key, _)| key.clone()).collect()
    }

    /// Notes what a look of a task at these keys has shown, and wakes the waiters of those that are free. A look of
    /// an earlier task tells of a time before the present waiters.
    fn note(&self, task: u64, looked_at: &[String], states: Option<Vec<KeyState>>) {
        let now = Instant::now();
        let states: Option<HashMap<String, KeyState>> = states
            .map(|states| states.into_iter().map(|state| (state.key.clone(), state)).collect());
        let mut keys = self.keys();
        if keys.task != task {
            return;
        }
        for key in looked_at {
            let Some(listened) = keys.listened.get_mut(key) else { continue };
            if let Some(states) = &states {
                let state = states.get(key);
                let grant = state.map(|state| state.grant);
                if !std::mem::replace(&mut listened.new, false) && listened.grant != grant {
                    listened.since = now;
                }
                listened.grant = grant;
                let remaining = state.map_or(Some(Duration::ZERO), |state| state.remaining);
                let is_free = remaining == Some(Duration::ZERO);
                if is_free {
                    listened.notify.notify_waiters();
                }
                let rest = remaining.filter(|_| !is_free);
                listened.ends_at = rest.map(|rest| now + rest + Duration::from_millis(1));
            }
            let pause = (now - listened.since) / 3;
            listened.pause = pause.clamp(self.pace.first, self.pace.longest);
            let turn = now + listened.pause;
            listened.next = Some(listened.ends_at.map_or(turn, |at| at.min(turn)));
        }
    }

    fn wake_all(&self) {
        self.keys().listened.values().for_each(|listened| listened.notify.notify_waiters());
    }
}

async fn poll(Running { watch, task }: &Running) {
    while let Some(next) = watch.next(*task) {
        tokio::select! {
            () = tokio::time::sleep_until(next) => {}
            () = watch.changed.notified() => continue,
        }
        let (mut due, must_look) = watch.due();
        if due.is_empty() {
            continue;
        }
        match watch.server.changed().await {
            // The change is reported once, so this look is for all.
            Some(true) => due = watch.all(),
            Some(false) if !must_look => {
                watch.note(*task, &due, None);
                continue;
            }
            _ => {}
        }
        match watch.server.look(&due).await {
            Ok(states) => watch.note(*task, &due, Some(states)),
            Err(error) => {
                tracing::debug!(%error, "looking for freed locks failed");
                watch.note(*task, &due, None);
                watch.wake_all();
                tokio::time::sleep(watch.pace.longest).await;
            }
        }
    }
}

/// Says that there is a task, until the task ends in any way.
struct Running {
    watch: Arc<Watch>,
    task: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut keys = self.watch.keys();
        // By now there may be another task.
        if keys.task == self.task {
            keys.late_at = None;
            // Nobody looks for those that still wait: let each of them ask. The first that finds
            // its key busy starts another task.
            for listened in keys.listened.values_mut() {
                if listened.next.take().is_some() {
                    listened.notify.notify_waiters();
                }
            }
        }
    }
}

struct Listening<'w> {
    watch: &'w Watch,
    key: &'w str,
    notify: Arc<Notify>,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        let mut keys = self.watch.keys();
        if let Some(listened) = keys.listened.get_mut(self.key) {
            listened.count -= 1;
            if listened.count == 0 {
                keys.listened.remove(self.key);
            }
        }
        if keys.listened.is_empty() {
            self.watch.changed.notify_one();
        }
    }
}

impl std::fmt::Debug for KeyPoller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPoller").field("pace", &self.watch.pace).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::Pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::*;

    /// Counts looks. A key is taken while its grant is in the map.
    #[derive(Clone, Default)]
    struct Server {
        looks: Arc<AtomicUsize>,
        taken: Arc<Mutex<HashMap<String, KeyState>>>,
    }

    impl Server {
        fn take(&self, key: &str, grant: i64, remaining: Option<Duration>) {
            let state = KeyState { key: key.to_owned(), grant, remaining };
            self.taken.lock().unwrap().insert(key.to_owned(), state);
        }

        fn looks(&self) -> usize {
            self.looks.swap(0, Ordering::SeqCst)
        }
    }

    #[async_trait]
    impl KeyStates for Server {
        async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
            self.looks.fetch_add(1, Ordering::SeqCst);
            let taken = self.taken.lock().unwrap();
            Ok(keys.iter().filter_map(|key| taken.get(key).cloned()).collect())
        }
    }

    const PACE: Pace = Pace::new(Duration::from_millis(5), Duration::from_millis(300));

    async fn is_woken(listener: &mut Pin<Box<impl Future<Output = ()>>>) -> bool {
        poll_fn(|cx| Poll::Ready(listener.as_mut().poll(cx).is_ready())).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_keys_that_nothing_happens_to_share_few_looks() {
        let server = Server::default();
        let poller = Arc::new(KeyPoller::new(server.clone(), PACE));
        let mut waiting = tokio::task::JoinSet::new();
        for n in 0..100 {
            server.take(&n.to_string(), 1, None);
            let poller = poller.clone();
            let of_task = poller.clone();
            waiting.spawn(async move { of_task.freed(&n.to_string()).await });
            tokio::time::sleep(Duration::from_millis(7)).await;
            poller.busy(&n.to_string());
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
        server.looks();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!((30..=40).contains(&server.looks()));
        server.taken.lock().unwrap().remove("42");
        waiting.join_next().await.unwrap().unwrap();
        waiting.abort_all();
        while waiting.join_next().await.is_some() {}
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.looks();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!((server.looks(), poller.watch.keys().late_at), (0, None), "nobody listens");
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_that_changes_hands_is_looked_at_more_often() {
        let server = Server::default();
        let poller = KeyPoller::new(server.clone(), PACE);
        server.take("k", 1, None);
        let mut waiting = Box::pin(poller.freed("k"));
        assert!(!is_woken(&mut waiting).await);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(server.looks(), 0, "it may be free");
        poller.busy("k");
        for grant in 2..100 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            server.take("k", grant, None);
        }
        let looks = server.looks();
        assert!((200..1_000).contains(&looks), "{looks} in 5 s");
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_term_is_noticed_at_once() {
        let server = Server::default();
        let poller = KeyPoller::new(server.clone(), PACE);
        server.take("k", 1, Some(Duration::from_secs(60)));
        let mut waiting = Box::pin(poller.freed("k"));
        assert!(!is_woken(&mut waiting).await);
        poller.busy("k");
        tokio::time::sleep(Duration::from_secs(59)).await;
        server.take("k", 1, Some(Duration::from_millis(100)));
        tokio::time::sleep(Duration::from_millis(301)).await;
        server.taken.lock().unwrap().clear();
        timeout(Duration::from_millis(110), waiting).await.unwrap();
    }

    #[test]
    fn a_runtime_that_stands_still_keeps_no_waiter_of_another_from_being_woken() {
        let runtime = || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_time().start_paused(true).build().unwrap()
        };
        let (standing, running) = (runtime(), runtime());
        let server = Server::default();
        let poller = KeyPoller::new(server.clone(), PACE);
        server.take("first", 1, None);
        let mut first = Box::pin(poller.freed("first"));
        // Its task does not get as far as a look.
        standing.block_on(async {
            assert!(!is_woken(&mut first).await);
            poller.busy("first");
        });
        running.block_on(async {
            let mut waiting = Box::pin(poller.freed("k"));
            assert!(!is_woken(&mut waiting).await);
            poller.busy("k");
            timeout(LATE * 10, waiting).await.expect("the key is free");
            assert_eq!(server.looks(), 1);
        });
        standing.block_on(async {
            tokio::time::sleep(PACE.longest * 10).await;
            assert_eq!(server.looks(), 0, "there is a later task");
        });
    }

    /// A server that answers late, and counts looks.
    struct LateServer(Server);

    #[async_trait]
    impl KeyStates for LateServer {
        async fn look(&self, keys: &[String]) -> Result<Vec<KeyState>, BackendError> {
            let states = self.0.look(keys).await;
            tokio::time::sleep(LATE * 10).await;
            states
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_takes_long_is_not_repeated_meanwhile() {
        let server = Server::default();
        let poller = KeyPoller::new(LateServer(server.clone()), PACE);
        server.take("k", 1, None);
        let mut waiting = Box::pin(poller.freed("k"));
        assert!(!is_woken(&mut waiting).await);
        poller.busy("k");
        assert!(timeout(LATE * 9, waiting).await.is_err());
        assert_eq!(server.looks(), 1);
    }
}
