//! Requests within the runtime of the client.
//!
//! The client opens connections, and their timers, in the runtime that polls a request, and keeps them
//! for later requests. In the runtime of a caller they would end with it.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;

/// A future that is polled and dropped within another runtime than that of its task.
pub(crate) struct InRuntime<F> {
    runtime: Handle,
    work: Option<Pin<Box<F>>>,
}

impl<F: Future> InRuntime<F> {
    pub(crate) fn new(runtime: Handle, work: F) -> Self {
        Self { runtime, work: Some(Box::pin(work)) }
    }
}

impl<F: Future> Future for InRuntime<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { runtime, work } = &mut *self;
        let _runtime = runtime.enter();
        match work {
            Some(work) => work.as_mut().poll(context),
            None => Poll::Pending,
        }
    }
}

/// What a request leaves behind, the client clears away by a task.
impl<F> Drop for InRuntime<F> {
    fn drop(&mut self) {
        let _runtime = self.runtime.enter();
        self.work = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Says when it is dropped in which runtime.
    struct Dropped(std::sync::mpsc::Sender<Handle>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            drop(self.0.send(Handle::current()));
        }
    }

    #[tokio::test]
    async fn a_request_is_polled_and_dropped_in_the_runtime_of_the_client() {
        let here = Handle::current();
        let (sender, dropped) = std::sync::mpsc::channel();
        let work = {
            let dropped = Dropped(sender.clone());
            InRuntime::new(here.clone(), async move {
                let _dropped = dropped;
                tokio::task::yield_now().await;
                (Handle::current().id(), tokio::spawn(async { Handle::current().id() }))
            })
        };
        let unpolled = InRuntime::new(here.clone(), {
            let dropped = Dropped(sender);
            async move { drop(dropped) }
        });
        let thread = std::thread::spawn(move || {
            drop(unpolled);
            tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
        });
        let (polled, task) =
            tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap();
        assert_eq!((polled, task.await.unwrap()), (here.id(), here.id()));
        let dropped: Vec<_> = dropped.iter().map(|runtime| runtime.id()).collect();
        assert_eq!(dropped, [here.id(), here.id()]);
    }
}
