//! The progress of a run: a bar that redraws itself on a terminal, or one line per cell
//! elsewhere.

use std::io::{IsTerminal, Write, stderr};
use std::time::{Duration, Instant};

use crate::cell::{Cell, Level};
use crate::strategy::Strategy;

const WIDTH: usize = 24;

pub struct Progress {
    passes: usize,
    done: usize,
    began: Instant,
    terminal: bool,
    what: String,
    /// Deposits of the current pass, and its start.
    deposits: u64,
    since: Instant,
}

impl Progress {
    pub fn new(passes: usize) -> Self {
        let now = Instant::now();
        let terminal = stderr().is_terminal();
        let what = String::new();
        Self { passes, done: 0, began: now, terminal, what, deposits: 0, since: now }
    }

    /// Starts a pass.
    pub fn begin(&mut self, strategy: Strategy, level: &Level) {
        self.what = format!("{}, {}", strategy.name(), level.text());
        self.deposits = 0;
        self.since = Instant::now();
        self.draw();
    }

    /// Counts more deposits.
    pub fn add(&mut self, deposits: u64) {
        self.deposits += deposits;
        self.draw();
    }

    /// Ends a pass.
    pub fn end(&mut self, cell: &Cell) {
        self.done += 1;
        let Some(sample) = cell.samples.last() else { return };
        let money = match &sample.money {
            Ok(_) => "money ok".to_owned(),
            Err(wrong) => format!("MONEY WRONG: {wrong}"),
        };
        let rate = grouped(sample.per_second());
        let p99 = millis(sample.latencies.percentile(99.0));
        self.clear();
        let n = format!("{:>width$}/{}", self.done, self.passes, width = digits(self.passes));
        eprintln!("{n}  {:<52} {rate:>9}/s  p99 {p99:>7} ms  {money}", self.what);
        self.draw();
    }

    /// Removes the bar.
    pub fn finish(&self) {
        self.clear();
    }

    fn draw(&self) {
        if !self.terminal || self.done == self.passes {
            return;
        }
        let full = WIDTH * self.done / self.passes.max(1);
        let bar = format!("{}{}", "#".repeat(full), ".".repeat(WIDTH - full));
        let rate = self.deposits as f64 / self.since.elapsed().as_secs_f64().max(0.1);
        eprint!("\r\x1b[2K[{bar}] {}/{}", self.done, self.passes);
        if self.done > 0 {
            let left = self.began.elapsed() / self.done as u32 * (self.passes - self.done) as u32;
            eprint!(", {} left", minutes(left));
        }
        eprint!("  {}  {}/s", self.what, grouped(rate));
        // A failure to draw the bar must not end the run.
        let _ = stderr().flush();
    }

    fn clear(&self) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
    }
}

fn digits(n: usize) -> usize {
    n.to_string().len()
}

fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

/// A number with three significant digits, or with thousands separators.
pub fn grouped(value: f64) -> String {
    if value < 9.995 {
        return format!("{value:.2}");
    }
    if value < 99.95 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Microseconds as milliseconds; a dash for `None`.
pub fn millis(micros: Option<u64>) -> String {
    micros.map_or_else(|| "-".to_owned(), |micros| grouped(micros as f64 / 1e3))
}

#[cfg(test)]
mod tests {
    use super::grouped;

    #[test]
    fn numbers_are_written_to_be_read() {
        let written = [0.0, 1.234, 9.999, 12.34, 99.97, 100.4, 999.6, 12_345.0, 1_234_567.0];
        let read = ["0.00", "1.23", "10.0", "12.3", "100", "100", "1,000", "12,345", "1,234,567"];
        assert_eq!(written.map(grouped), read);
    }
}
