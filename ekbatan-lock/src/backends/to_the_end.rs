//! Work that is finished even if nobody waits for it any longer.

// Only sessions of PostgreSQL are used without an actor.
#![cfg_attr(not(feature = "postgres"), allow(dead_code))]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

/// A future that runs in place while it is awaited, within its own runtime. If it is dropped before
/// its end, a task of that runtime runs the rest. A panic ends it.
pub(crate) struct ToTheEnd {
    work: Option<BoxFuture<'static, ()>>,
    runtime: Handle,
}

impl ToTheEnd {
    pub(crate) fn new(runtime: Handle, work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime }
    }
}

impl Future for ToTheEnd {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Work that panics is not polled again.
        let Some(mut work) = self.work.take() else { return Poll::Ready(()) };
        let polled = {
            let _runtime = self.runtime.enter();
            catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(context)))
        };
        if let Ok(Poll::Pending) = polled {
            self.work = Some(work);
            return Poll::Pending;
        }
        Poll::Ready(())
    }
}

impl Drop for ToTheEnd {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn work_that_is_dropped_is_finished_by_its_own_runtime() {
        let (begin, begun) = oneshot::channel::<()>();
        let (end, ended) = oneshot::channel();
        let work = ToTheEnd::new(Handle::current(), async move {
            begun.await.unwrap();
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
            end.send(()).unwrap();
        });
        let other = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            runtime.block_on(async {
                let mut work = work;
                std::future::poll_fn(|cx| Poll::Ready(Pin::new(&mut work).poll(cx).is_ready()))
                    .await
            })
        });
        assert!(!tokio::task::spawn_blocking(|| other.join().unwrap()).await.unwrap());
        begin.send(()).unwrap();
        ended.await.unwrap();
    }

    #[tokio::test]
    async fn a_panic_ends_the_work() {
        let (guard, ended) = oneshot::channel::<()>();
        ToTheEnd::new(Handle::current(), async move {
            let _guard = guard;
            panic!("a test's panic");
        })
        .await;
        ended.await.unwrap_err();
    }
}
