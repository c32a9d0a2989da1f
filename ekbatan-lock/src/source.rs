//! What every source of locks can do with a closure: run it under locks, on one node only, or
//! as the leader; and keys with several holders.

use std::future::{Future, IntoFuture};
use std::time::Duration;

use crate::lead::lead;
use crate::run_once::{run_once, run_once_at};
use crate::with_lock::{with_lock, with_locks};
use crate::{
    KeyPart, KeyedLockProvider, Lease, LockKey, LockOptions, ReadWriteLock, RunOnce, RunOnceError,
    Semaphore, WithLockError,
};

/// Runs work under locks. Every [`KeyedLockProvider`] has these methods, `dyn` ones included.
///
/// A lock that a method took is released when the work ends, fails, panics or is dropped. The
/// method returns without waiting until the server has the key back: the next waiter of this
/// process can have the key at once, other processes one round trip later.
/// [`LockProvider::close`](crate::LockProvider::close) waits for the server. If the process
/// ends without `close`, the server keeps the key until its term ends.
pub trait LockSource: KeyedLockProvider {
    /// Takes the lock, runs the work and releases the lock. Taking the same lock again within
    /// the work succeeds at once.
    ///
    /// Fence an action with the lease, so that it cannot commit after the lease has ended:
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_core::action::{Action, ActionExecutor, ExecuteError};
    /// # use ekbatan_lock::*;
    /// # async fn run<A: Action>(locks: &LockProvider, executor: &ActionExecutor, action: A, params: A::Params) -> Result<(), WithLockError<ExecuteError<A::Error>>> {
    /// let options = LockOptions::wait(Duration::from_secs(2)).hold(Duration::from_secs(10));
    /// let output = locks
    ///     .with_lock(&lock_key!("wallet", 17), options, |lease| {
    ///         executor.execute(&action, params).fenced_by(&lease)
    ///     })
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The work's own error; or an error of the lock, in which case the work did not begin.
    fn with_lock<F, T, E>(
        &self,
        key: &LockKey,
        options: LockOptions,
        work: impl FnOnce(Lease) -> F,
    ) -> impl Future<Output = Result<T, WithLockError<E>>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        with_lock(self, key, options, work)
    }

    /// Takes the locks on all keys or on none, runs the work and releases them.
    ///
    /// The work gets one lease per key, in the order of `keys`. A key that occurs twice is
    /// locked once. Locks are taken in the order of [`LockKey`], so that two calls with the
    /// same keys cannot deadlock. Locks that the scope already holds are not part of this
    /// order: pass all keys in one call.
    ///
    /// `max_wait` bounds the wait for all keys together. `max_hold` counts for each key from
    /// its own grant. The work begins only if every lease is still held.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_lock::*;
    /// # async fn run(locks: &LockProvider) -> Result<(), WithLockError<std::io::Error>> {
    /// let keys = [lock_key!("wallet", 17), lock_key!("wallet", 4)];
    /// let options = LockOptions::wait(Duration::from_secs(2)).hold(Duration::from_secs(10));
    /// locks
    ///     .with_locks(&keys, options, async |leases: Vec<Lease>| {
    ///         assert_eq!(leases[0].key().id(), "wallet:17");
    ///         Ok(())
    ///     })
    ///     .await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The work's own error; or an error of a lock, in which case the work did not begin.
    fn with_locks<F, T, E>(
        &self,
        keys: &[LockKey],
        options: LockOptions,
        work: impl FnOnce(Vec<Lease>) -> F,
    ) -> impl Future<Output = Result<T, WithLockError<E>>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        with_locks(self, keys, options, work)
    }

    /// Runs the work if the key is free, and skips it otherwise, without waiting. Use it for
    /// jobs that every node starts at the same time and only one node should run.
    ///
    /// The key stays taken for `at_least` from its grant, even if the work ends earlier, fails,
    /// panics or is dropped. A node whose clock is late therefore finds the key taken and does
    /// not run the same work again. The server counts this time; no node's clock, task or
    /// connection is involved. For servers without terms, such as the session locks of
    /// PostgreSQL, this process holds the key that long, and the key is free when it exits.
    ///
    /// After `at_most`, or when the lease is lost, the work is dropped at its next await and
    /// the result is [`RunOnceError::Stopped`]. Tasks that the work spawned keep running: they
    /// have to watch [`Lease::lost`]. A commit that has begun also continues, but the database
    /// rejects it if it is fenced by the lease.
    ///
    /// While the work runs, the server holds the key for a term of 30 s, or `at_least` if that
    /// is longer, and this process renews it. That is how long the key stays taken after the
    /// node dies.
    ///
    /// In a scope that already holds the key, the work runs under the existing lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_lock::*;
    /// # async fn send_reports() -> std::io::Result<u32> { Ok(3) }
    /// # async fn run(locks: &LockProvider) -> Result<(), RunOnceError<std::io::Error>> {
    /// let (at_least, at_most) = (Duration::from_secs(60), Duration::from_secs(600));
    /// let key = lock_key!("nightly-report");
    /// match locks.run_once(&key, at_least, at_most, async |_| send_reports().await).await? {
    ///     RunOnce::Done(sent) => println!("{sent} reports sent"),
    ///     RunOnce::Skipped => println!("another node sends them"),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// The work's own error, an error of the lock, or [`RunOnceError::Stopped`].
    fn run_once<F, T, E>(
        &self,
        key: &LockKey,
        at_least: Duration,
        at_most: Duration,
        work: impl FnOnce(Lease) -> F,
    ) -> impl Future<Output = Result<RunOnce<T>, RunOnceError<E>>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        run_once(self, key, at_least, at_most, work)
    }

    /// Runs the work of one fire of a schedule on one node, like [`run_once`](Self::run_once), if
    /// the nodes can name the fire: by the time for which it was planned, not by their clocks.
    ///
    /// The fire stays taken for `at_least` from the beginning of the work, and nothing else does: a node
    /// that comes late with the same fire skips it, and the next fire is not skipped for it.
    /// `at_least` can thus be much longer than the time between two fires, and be longer than any
    /// node is ever late. While the work runs, other fires of the key are skipped.
    ///
    /// If the node dies, nobody repeats the fire for `at_least`, and other fires run again after
    /// 30 s. If the key is busy or the lock fails, the fire is free again. If the lease on the fire is
    /// lost, the work is dropped as if that on the key was, and the error names the key of the fire.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_lock::*;
    /// # async fn send_reports() -> std::io::Result<u32> { Ok(3) }
    /// # async fn run(locks: &LockProvider) -> Result<(), RunOnceError<std::io::Error>> {
    /// let (at_least, at_most) = (Duration::from_secs(6 * 3600), Duration::from_secs(600));
    /// let (key, planned) = (lock_key!("hourly-report"), "2026-11-23T03:00Z");
    /// let sent =
    ///     locks.run_once_at(&key, planned, at_least, at_most, async |_| send_reports().await);
    /// if let RunOnce::Done(sent) = sent.await? {
    ///     println!("{sent} reports sent");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`run_once`](Self::run_once), and [`LockError::Duration`](crate::LockError::Duration) if `at_most` is zero.
    fn run_once_at<F, T, E>(
        &self,
        key: &LockKey,
        fire: impl KeyPart,
        at_least: Duration,
        at_most: Duration,
        work: impl FnOnce(Lease) -> F,
    ) -> impl Future<Output = Result<RunOnce<T>, RunOnceError<E>>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        run_once_at(self, key, fire, at_least, at_most, work)
    }

    /// Runs the work as soon as, and while, this process is the leader: the holder of the key.
    /// Use it for work that goes on and that one process should do, such as forwarding events.
    /// Returns when the work returns; until then, the process leads or stands by.
    ///
    /// While the process leads, it renews the key, which the server keeps for `term`. If the
    /// process dies or cannot renew the key, another one leads after this time. Locks of a session
    /// are free as soon as the server notices that the session has ended.
    ///
    /// If the lease is lost, the work is dropped at its next await, and the process stands by to
    /// lead again, with new work. Tasks that the work spawned keep running: they have to watch
    /// [`Lease::lost`]. What the work writes should be fenced by its lease. A lock server that is
    /// not available is waited for. A process that loses the lead again and again asks once a second.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_lock::*;
    /// # async fn forward(lease: &Lease) -> std::io::Result<()> { Ok(()) }
    /// # async fn run(locks: &LockProvider) -> Result<(), WithLockError<std::io::Error>> {
    /// let term = Duration::from_secs(10);
    /// locks.lead(&lock_key!("forwarder"), term, async |lease| forward(&lease).await).await
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The work's own error, or an error of the lock, unless the server is only away.
    fn lead<F, T, E>(
        &self,
        key: &LockKey,
        term: Duration,
        work: impl FnMut(Lease) -> F,
    ) -> impl Future<Output = Result<T, WithLockError<E>>>
    where
        F: IntoFuture<Output = Result<T, E>>,
    {
        lead(self, key, term, work)
    }

    /// The key as a semaphore: as many holders as there are permits have it at the same time. Use
    /// it to limit how much of something runs at once, over all processes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_lock::*;
    /// # async fn send() -> std::io::Result<()> { Ok(()) }
    /// # async fn run(locks: &LockProvider) -> Result<(), WithLockError<std::io::Error>> {
    /// let gateway = locks.semaphore(&lock_key!("sms-gateway"), 4);
    /// let options = LockOptions::wait(Duration::from_secs(5)).hold(Duration::from_secs(10));
    /// gateway.with_permit(options, async |_permit| send().await).await
    /// # }
    /// ```
    fn semaphore(&self, key: &LockKey, permits: usize) -> Semaphore<'_, Self> {
        Semaphore::new(self, key, permits)
    }

    /// The key as a read/write lock: either up to `readers` readers have it at the same time, or
    /// one writer. Use it where many may look at something together while nobody changes it.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use ekbatan_core::action::{Action, ActionExecutor, ExecuteError};
    /// # use ekbatan_lock::*;
    /// # async fn run<A: Action>(locks: &LockProvider, executor: &ActionExecutor, sell: A, order: A::Params, reprice: A, prices: A::Params) -> Result<(), WithLockError<ExecuteError<A::Error>>> {
    /// let catalog = locks.read_write(&lock_key!("catalog"), 8);
    /// let options = LockOptions::wait(Duration::from_secs(5)).hold(Duration::from_secs(10));
    /// let sold = catalog.with_read(options, |reader| {
    ///     executor.execute(&sell, order).fenced_by(&reader)
    /// });
    /// sold.await?;
    /// let repriced = catalog.with_write(options, |writer| {
    ///     executor.execute(&reprice, prices).fenced_by(&writer)
    /// });
    /// repriced.await?;
    /// # Ok(()) }
    /// ```
    fn read_write(&self, key: &LockKey, readers: usize) -> ReadWriteLock<'_, Self> {
        ReadWriteLock::new(self, key, readers)
    }
}

impl<P: KeyedLockProvider + ?Sized> LockSource for P {}
