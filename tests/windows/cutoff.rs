//! What comes in around the cutoff.

use std::time::Duration;

use chrono::TimeDelta;
use ekbatan::jobs::windows::WindowState;
use ekbatan::prelude::*;
use support::{Dialect, soak, until};
use tokio::sync::Notify;

use crate::entries::{AddEntry, Adding, Entries, EntryState, entry_of};
use crate::scene::{Scene, add, nodes};

on_every_database! {
    what_comes_around_the_cutoff_is_batched_or_refused_as_it_was_answered,
    what_found_the_window_open_and_commits_after_its_end_is_refused,
}

mod on_servers {
    use super::*;

    on_every_database! {
        only postgres and mysql and mariadb:
        what_is_being_committed_at_the_cutoff_is_batched,
    }
}

async fn what_comes_around_the_cutoff_is_batched_or_refused_as_it_was_answered(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let other = scene.open_again(TimeDelta::zero()).await;
    let nodes = nodes(&scene.executor, Entries::default()).await;
    for round in 0..soak::rounds(3, 100) {
        let window = scene.open(&format!("bank {round}"), Duration::from_millis(200)).await;
        let adding = (0..12).map(|n| {
            let executor = if n % 2 == 0 { scene.executor.clone() } else { other.clone() };
            tokio::spawn(async move {
                let (mut in_time, mut late) = (0, 0);
                while late < 3 {
                    match add(&executor, window).await {
                        true => in_time += 1,
                        false => late += 1,
                    }
                }
                (in_time, late)
            })
        });
        let adding: Vec<_> = adding.collect();
        let (mut in_time, mut late) = (0, 0);
        for adding in adding {
            let of_task = adding.await.unwrap();
            (in_time, late) = (in_time + of_task.0, late + of_task.1);
        }
        scene.until_state(window, WindowState::Closed).await;
        scene.assert_whole(window, in_time, late).await;
    }
    nodes.drain().await;
}

/// Adds an entry. If the window is open, it waits until the test lets it commit.
#[derive(Default)]
struct AddLater {
    found_it_open: Notify,
    commits: Notify,
}

impl Action for AddLater {
    const NAME: &'static str = "entries.add_later";
    type Params = Adding;
    type Output = bool;
    type Error = ReadError;

    async fn perform(
        &self,
        ctx: &mut ActionContext<'_>,
        adding: &Adding,
    ) -> Result<bool, ReadError> {
        let is_in_time = AddEntry.perform(ctx, adding).await?;
        if is_in_time {
            self.found_it_open.notify_one();
            self.commits.notified().await;
        }
        Ok(is_in_time)
    }
}

/// The barrier waits for transactions, and this one has not begun.
async fn what_found_the_window_open_and_commits_after_its_end_is_refused(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", Duration::from_secs(3_600)).await;
    let later = AddLater::default();
    let adding = async { scene.executor.execute(&later, Adding { window, amount: 5 }).await };
    let closing = async {
        later.found_it_open.notified().await;
        scene.cut_off(window).await;
        let nodes = nodes(&scene.executor, Entries::default()).await;
        scene.until_state(window, WindowState::Closed).await;
        nodes.drain().await;
        later.commits.notify_one();
    };
    let (is_in_time, ()) = tokio::join!(adding, closing);
    assert!(!is_in_time.unwrap(), "the action ran again, and found it closed");
    scene.assert_whole(window, 0, 1).await;
}

/// A select at the cutoff would not see it.
async fn what_is_being_committed_at_the_cutoff_is_batched(dialect: Dialect) {
    let scene = Scene::start(dialect).await;
    let window = scene.open("anna", Duration::from_secs(3_600)).await;
    scene.add(window, 2).await;
    let mut other = scene.scratch.connect().await;
    other.execute("BEGIN").await;
    let id = entry_of(window);
    let insert = format!("INSERT INTO entries VALUES ('{id}', '{window}', 5, NULL, 'PENDING', 1)");
    other.execute(&insert).await;
    scene.cut_off(window).await;
    let nodes = nodes(&scene.executor, Entries::default()).await;
    scene.until_state(window, WindowState::Closing).await;
    // The handler has the event, and waits.
    let claimed = format!("FROM {} WHERE state = 'CLAIMED'", scene.scratch.eventlog("deliveries"));
    until("the handler runs", async || !scene.scratch.select(&["id"], &claimed).await.is_empty())
        .await;
    assert_eq!(scene.entries(window, EntryState::Pending).await, 2);
    other.execute("COMMIT").await;
    scene.until_state(window, WindowState::Closed).await;
    nodes.drain().await;
    scene.assert_whole(window, 3, 0).await;
}
