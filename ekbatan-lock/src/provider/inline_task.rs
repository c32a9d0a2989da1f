//! A task that exists for the runtime only while it has something to do.
//!
//! A caller that has work for it polls it in place: work that waits for nothing is then done
//! without a change of thread, and a request is sent before its caller goes on. When it is woken
//! later, a task of the runtime polls it. In between it costs no task.
//!
//! Invariants: the future is polled by one thread at a time, and always within its runtime. A
//! wake-up is followed by a poll. A future that panics is dropped, and one whose runtime has
//! ended is dropped, elsewhere, when it is woken: the end of a runtime wakes all its timers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

/// Nobody polls the future, and it was not woken.
const IDLE: u8 = 0;
/// A task of the runtime is going to poll the future.
const SCHEDULED: u8 = 1;
/// The future is being polled.
const POLLED: u8 = 2;
/// The future is being polled, and was woken meanwhile.
const WOKEN: u8 = 3;
/// The future has been dropped.
const OVER: u8 = 4;

pub(crate) struct InlineTask {
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    runtime: Handle,
    state: AtomicU8,
}

impl InlineTask {
    /// A task of the current runtime, which begins with its first poll. The future may keep the
    /// reference to its task.
    pub(crate) fn new<F: Future<Output = ()> + Send + 'static>(
        future: impl FnOnce(&Weak<Self>) -> F,
    ) -> Arc<Self> {
        Arc::new_cyclic(|task| Self {
            future: Mutex::new(Some(Box::pin(future(task)))),
            runtime: Handle::current(),
            state: AtomicU8::new(IDLE),
        })
    }

    /// Makes a change that the future waits for, and polls the future in place. If another
    /// thread polls it, or this thread cannot, a task of the runtime polls it.
    pub(crate) fn poll_after(self: &Arc<Self>, change: impl FnOnce()) {
        let polls =
            is_fit_to_poll() && (self.change(IDLE, POLLED) || self.change(SCHEDULED, POLLED));
        change();
        if polls {
            // The change has woken the future, and the poll that follows is enough for that.
            self.change(WOKEN, POLLED);
            self.poll();
        } else {
            self.schedule();
        }
    }

    /// Has a task of the runtime poll the future.
    pub(crate) fn schedule(self: &Arc<Self>) {
        if self.change(IDLE, SCHEDULED) {
            self.spawn();
        }
    }

    fn change(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn spawn(self: &Arc<Self>) {
        let scheduled = ScheduledPoll(Some(self.clone()));
        self.runtime.spawn(async move { scheduled.run() });
    }

    /// Polls the future once, for a caller that has set the state to [`POLLED`].
    fn poll(self: &Arc<Self>) {
        let waker = Waker::from(self.clone());
        let mut future = self.future();
        let polled = {
            let _runtime = self.runtime.enter();
            catch_unwind(AssertUnwindSafe(|| match future.as_mut() {
                Some(future) => future.as_mut().poll(&mut Context::from_waker(&waker)),
                None => Poll::Ready(()),
            }))
        };
        if !matches!(polled, Ok(Poll::Pending)) {
            drop(self.end(future));
            return;
        }
        drop(future);
        if !self.change(POLLED, IDLE) {
            self.state.store(SCHEDULED, Ordering::Release);
            self.spawn();
        }
    }

    /// Takes the future, which has finished, panicked or lost its runtime.
    fn end(
        &self,
        mut future: MutexGuard<'_, Option<BoxFuture<'static, ()>>>,
    ) -> Option<BoxFuture<'static, ()>> {
        self.state.store(OVER, Ordering::Release);
        future.take()
    }

    fn future(&self) -> MutexGuard<'_, Option<BoxFuture<'static, ()>>> {
        self.future.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wake for InlineTask {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Writes in each state, so that the next poll sees what this thread has done before.
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            Some(match state {
                IDLE => SCHEDULED,
                POLLED => WOKEN,
                other => other,
            })
        });
        if before == Ok(IDLE) {
            self.spawn();
        }
    }
}

/// One poll by a task of the runtime. If it is dropped before, the runtime has ended.
struct ScheduledPoll(Option<Arc<InlineTask>>);

impl ScheduledPoll {
    fn run(mut self) {
        if let Some(task) = self.0.take()
            && task.change(SCHEDULED, POLLED)
        {
            task.poll();
        }
    }
}

impl Drop for ScheduledPoll {
    fn drop(&mut self) {
        if let Some(task) = self.0.take()
            && task.change(SCHEDULED, POLLED)
            && let Some(future) = task.end(task.future())
        {
            drop_elsewhere(future);
        }
    }
}

/// Drops a future on a thread that does only this. The thread that has woken the future may hold
/// a lock that is taken when the future is dropped.
fn drop_elsewhere(future: BoxFuture<'static, ()>) {
    static FUTURES: OnceLock<Sender<BoxFuture<'static, ()>>> = OnceLock::new();
    let futures = FUTURES.get_or_init(|| {
        let (futures, dropped) = channel();
        let drops = move || {
            for future in dropped {
                let _ = catch_unwind(AssertUnwindSafe(|| drop(future)));
            }
        };
        let _ = std::thread::Builder::new().name("ekbatan-lock".to_owned()).spawn(drops);
        futures
    });
    if let Err(unsent) = futures.send(future) {
        // The thread could not be started. A leak is better than a thread that waits for itself.
        std::mem::forget(unsent);
    }
}

/// Whether this thread can poll: it is neither ending nor unwinding from a panic.
fn is_fit_to_poll() -> bool {
    let is_ending = Handle::try_current().is_err_and(|error| error.is_thread_local_destroyed());
    !is_ending && !std::thread::panicking()
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use tokio::sync::{Notify, mpsc, oneshot};

    use super::*;

    fn task<F: Future<Output = ()> + Send + 'static>(future: F) -> Arc<InlineTask> {
        InlineTask::new(|_| future)
    }

    /// Reports when it is dropped.
    struct Dropped(Option<oneshot::Sender<()>>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.take().map(|dropped| dropped.send(()));
        }
    }

    fn dropped() -> (Dropped, oneshot::Receiver<()>) {
        let (sender, receiver) = oneshot::channel();
        (Dropped(Some(sender)), receiver)
    }

    #[tokio::test]
    async fn work_without_a_wait_is_done_in_place() {
        let (numbers, mut received) = mpsc::unbounded_channel();
        let (more, asked) = mpsc::unbounded_channel();
        let mut asked: mpsc::UnboundedReceiver<i32> = asked;
        let task = task(async move {
            while let Some(number) = asked.recv().await {
                numbers.send(number * 2).unwrap();
            }
        });
        task.poll_after(|| ());
        for number in 1..4 {
            task.poll_after(|| more.send(number).unwrap());
            assert_eq!(received.try_recv(), Ok(number * 2), "before the next await");
        }
        task.poll_after(|| drop(more));
        assert_eq!(received.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn every_wake_up_is_followed_by_a_poll() {
        for _ in 0..200 {
            let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
            let (seen, done) = (begun.clone(), ended.clone());
            let changed = Arc::new(Notify::new());
            let of_task = changed.clone();
            let task = task(async move {
                while seen.load(Ordering::SeqCst) < 4 {
                    of_task.notified().await;
                }
                done.notify_one();
            });
            task.poll_after(|| ());
            let threads = (0..4).map(|_| {
                let (task, begun, changed) = (task.clone(), begun.clone(), changed.clone());
                tokio::task::spawn_blocking(move || {
                    task.poll_after(|| ());
                    begun.fetch_add(1, Ordering::SeqCst);
                    changed.notify_one();
                })
            });
            for thread in threads.collect::<Vec<_>>() {
                thread.await.unwrap();
            }
            let ended = tokio::time::timeout(Duration::from_secs(60), ended.notified());
            ended.await.expect("a wake-up was lost");
        }
    }

    #[tokio::test]
    async fn a_panic_stays_within_and_drops_the_future() {
        let (guard, dropped) = dropped();
        let (begin, begun) = oneshot::channel::<()>();
        let task = task(async move {
            let _guard = guard;
            begun.await.unwrap();
            panic!("a test's panic");
        });
        task.poll_after(|| ());
        task.poll_after(|| begin.send(()).unwrap());
        dropped.await.unwrap();
        task.poll_after(|| ());
        task.wake_by_ref();
    }

    #[tokio::test]
    async fn the_end_of_its_runtime_drops_the_future() {
        let (guard, dropped) = dropped();
        let other = std::thread::spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.unwrap();
            let entered = runtime.enter();
            let task = task(async move {
                let _guard = guard;
                tokio::time::sleep(Duration::from_secs(3_600)).await;
            });
            task.poll_after(|| ());
            drop(entered);
            task
        });
        let task = tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap();
        dropped.await.unwrap();
        task.poll_after(|| ());
    }

    /// Takes a lock when it is dropped.
    struct Locks(Arc<Mutex<Option<Waker>>>, Option<Dropped>);

    impl Drop for Locks {
        fn drop(&mut self) {
            let _waker = self.0.lock().unwrap();
            self.1 = None;
        }
    }

    #[tokio::test]
    async fn who_wakes_a_future_without_a_runtime_may_hold_its_locks() {
        let (guard, dropped) = dropped();
        let waker = Arc::new(Mutex::new(None));
        let of_future = waker.clone();
        let ended = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _entered = runtime.enter();
            let task = task(async move {
                let locks = Locks(of_future, Some(guard));
                poll_fn(|cx| {
                    *locks.0.lock().unwrap() = Some(cx.waker().clone());
                    Poll::<()>::Pending
                })
                .await;
            });
            task.poll_after(|| ());
        });
        ended.join().unwrap();
        std::thread::spawn(move || {
            let waker = waker.lock().unwrap();
            waker.as_ref().unwrap().wake_by_ref();
        });
        let dropped = tokio::time::timeout(Duration::from_secs(60), dropped).await;
        dropped.expect("the thread that wakes the future waits for itself").unwrap();
    }

    #[tokio::test]
    async fn a_poll_within_a_poll_is_left_to_the_outer_one() {
        let (numbers, mut received) = mpsc::unbounded_channel();
        let again = Arc::new(Notify::new());
        let woken = again.clone();
        let task = InlineTask::new(|task| {
            let task = task.clone();
            async move {
                task.upgrade().unwrap().poll_after(|| woken.notify_one());
                again.notified().await;
                numbers.send(1).unwrap();
            }
        });
        task.poll_after(|| ());
        assert_eq!(received.recv().await, Some(1));
    }
}
