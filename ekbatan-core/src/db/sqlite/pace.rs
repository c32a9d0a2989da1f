//! Which work of the library runs at once on the thread of the caller.
//!
//! A read by id and a small commit take some 20 us if the pages are in memory, and to hand them
//! to another thread takes longer than that. But the caller's thread belongs to the runtime, and
//! others wait for it. So whatever may wait for a disk, for another process or for many rows runs
//! on a thread of its own:
//!
//! - commits that wait for the disk (`durability: full`), and large ones;
//! - one commit after `MAX_COMMITS` others, because only there a long log is written into the file;
//! - all work for a while after work took so long that it must have waited.

use std::time::{Duration, Instant};

/// How many rows a commit may have, and how many bytes.
const MAX_ROWS: usize = 16;
const MAX_BYTES: usize = 64 * 1024;

/// After so many commits one goes to the thread.
const MAX_COMMITS: u32 = 64;

/// What takes longer has waited.
const LONG: Duration = Duration::from_millis(2);

/// For how long all work goes to the thread then.
const REST: Duration = Duration::from_millis(100);

pub(super) struct CallerThreadPace {
    waits_for_disk: bool,
    commits: u32,
    rests_until: Option<Instant>,
}

impl CallerThreadPace {
    /// `waits_for_disk`: whether each commit does.
    pub(super) fn new(waits_for_disk: bool) -> Self {
        Self { waits_for_disk, commits: 0, rests_until: None }
    }

    pub(super) fn may_read(&self) -> bool {
        self.rests_until.is_none_or(|until| Instant::now() >= until)
    }

    /// Counts the commit.
    pub(super) fn may_commit(&mut self, rows: usize, bytes: usize) -> bool {
        let may = !self.waits_for_disk
            && rows <= MAX_ROWS
            && bytes <= MAX_BYTES
            && self.commits < MAX_COMMITS
            && self.may_read();
        self.commits = if may { self.commits + 1 } else { 0 };
        may
    }

    /// Runs work on the thread of the caller.
    pub(super) fn run<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let answer = work();
        self.record(begun.elapsed());
        answer
    }

    fn record(&mut self, took: Duration) {
        if took > LONG {
            self.rests_until = Some(Instant::now() + REST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_the_disk_or_writes_much_goes_to_the_thread() {
        assert!(CallerThreadPace::new(false).may_commit(1, 1));
        assert!(CallerThreadPace::new(true).may_read());
        assert!(!CallerThreadPace::new(true).may_commit(1, 1));
        assert!(!CallerThreadPace::new(false).may_commit(MAX_ROWS + 1, 1));
        assert!(!CallerThreadPace::new(false).may_commit(1, MAX_BYTES + 1));
    }

    #[test]
    fn some_commits_go_to_the_thread_where_the_log_is_shortened() {
        let mut pace = CallerThreadPace::new(false);
        let there = (0..1_000).filter(|_| !pace.may_commit(2, 1)).count();
        assert_eq!(there, 1_000 / (MAX_COMMITS as usize + 1));
    }

    #[test]
    fn after_long_work_the_thread_of_the_caller_is_left_alone() {
        let mut pace = CallerThreadPace::new(false);
        pace.record(LONG);
        assert!(pace.may_read() && pace.may_commit(1, 1));
        pace.record(LONG * 2);
        assert!(!pace.may_read() && !pace.may_commit(1, 1));
        pace.rests_until = Some(Instant::now());
        assert!(pace.may_read() && pace.may_commit(1, 1));
    }
}
