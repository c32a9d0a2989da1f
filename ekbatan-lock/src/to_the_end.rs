//! Work that is finished even if nobody waits for it any longer.

// Only sessions of PostgreSQL are used without an actor.
#![cfg_attr(not(feature = "postgres"), allow(dead_code))]

use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;

/// A future that runs in place, as any other, while it is awaited. If it is dropped before its
/// end, a task of its runtime runs the rest.
pub(crate) struct ToTheEnd {
    work: Option<BoxFuture<'static, ()>>,
    runtime: Handle,
}

impl ToTheEnd {
    /// Work of the current runtime.
    pub(crate) fn new(work: impl Future<Output = ()> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime: Handle::current() }
    }
}

impl Future for ToTheEnd {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(work) = &mut self.work else { return Poll::Ready(()) };
        let polled = work.as_mut().poll(context);
        if polled.is_ready() {
            self.work = None;
        }
        polled
    }
}

impl Drop for ToTheEnd {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}
