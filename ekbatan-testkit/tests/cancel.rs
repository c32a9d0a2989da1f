//! `drop_at_poll` polls as often as requested and drops the future before it returns.

use std::cell::Cell;
use std::future::{pending, poll_fn};
use std::rc::Rc;
use std::task::Poll;

use ekbatan_testkit::{Dropped, drop_at_poll};

/// Records that it was dropped.
struct Flag(Rc<Cell<bool>>);

impl Drop for Flag {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

/// Waits `waits` times, counts each poll, then returns `"done"`.
async fn waits(waits: usize, polls: &Cell<usize>) -> &'static str {
    let mut left = waits;
    poll_fn(|context| {
        polls.set(polls.get() + 1);
        if left == 0 {
            return Poll::Ready("done");
        }
        left -= 1;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[tokio::test]
async fn polls_no_more_than_asked() {
    for asked in 0..=3 {
        let polls = Cell::new(0);
        let outcome = drop_at_poll(asked, waits(3, &polls)).await;
        assert_eq!(outcome, Dropped::Dropped { polls: asked });
        assert_eq!(polls.get(), asked);
    }
}

#[tokio::test]
async fn a_future_that_finishes_in_time_is_not_dropped() {
    for asked in [4, 5, usize::MAX] {
        let polls = Cell::new(0);
        let outcome = drop_at_poll(asked, waits(3, &polls)).await;
        assert_eq!(outcome.finished(), Some("done"));
        assert_eq!(polls.get(), 4);
    }
}

#[tokio::test]
async fn the_future_is_dropped_before_the_outcome_is_returned() {
    let dropped = Rc::new(Cell::new(false));
    let flag = Flag(Rc::clone(&dropped));
    let future = async move {
        let _flag = flag;
        pending::<()>().await;
    };
    let outcome = drop_at_poll(1, future).await;
    assert_eq!(outcome, Dropped::Dropped { polls: 1 });
    assert!(dropped.get());
}

#[tokio::test]
async fn the_future_is_polled_when_its_waker_is_called() {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let task = tokio::spawn(async move {
        tokio::task::yield_now().await;
        sender.send("news").unwrap();
    });
    let outcome = drop_at_poll(2, receiver).await;
    assert_eq!(outcome.finished(), Some(Ok("news")));
    task.await.unwrap();
}
