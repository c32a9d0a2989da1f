//! Groups cells into panels of series: one series per strategy, over the first dimension
//! that varies, and one panel per combination of the other dimensions.

use super::chart::Series;
use crate::cell::{Cell, Level};
use crate::progress::{grouped, millis};
use crate::results::Results;
use crate::strategy::Strategy;

/// A dimension of a level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    Tasks,
    Skew,
    Wallets,
    Processes,
    Delay,
}

const DIMENSIONS: [Dimension; 5] =
    [Dimension::Tasks, Dimension::Skew, Dimension::Wallets, Dimension::Processes, Dimension::Delay];

impl Dimension {
    fn of(self, level: &Level) -> f64 {
        match self {
            Self::Tasks => f64::from(level.tasks),
            Self::Skew => level.skew,
            Self::Wallets => f64::from(level.wallets),
            Self::Processes => f64::from(level.processes),
            Self::Delay => level.delay_us as f64 / 1e3,
        }
    }

    /// The label of the axis.
    pub const fn label(self) -> &'static str {
        match self {
            Self::Tasks => "tasks that deposit at the same time",
            Self::Skew => "skew of the choice of wallet (Zipf; 0: all alike)",
            Self::Wallets => "wallets",
            Self::Processes => "processes",
            Self::Delay => "network delay each way, ms",
        }
    }

    fn text(self, level: &Level) -> String {
        let many = |n: u32, one: &str| format!("{n} {one}{}", if n == 1 { "" } else { "s" });
        match self {
            Self::Tasks => many(level.tasks, "task"),
            Self::Skew if level.skew == 0.0 => String::new(),
            Self::Skew => format!("skew {}", level.skew),
            Self::Wallets if level.wallets == 1 => "one hot wallet".to_owned(),
            Self::Wallets => many(level.wallets, "wallet"),
            Self::Processes if level.processes == 1 => "one process".to_owned(),
            Self::Processes => format!("{} processes", level.processes),
            Self::Delay if level.delay_us == 0 => String::new(),
            Self::Delay => format!("{} ms of delay each way", level.delay_us as f64 / 1e3),
        }
    }
}

/// Cells that differ only in one dimension and the strategy.
pub struct Panel<'a> {
    pub title: String,
    pub x: Dimension,
    cells: Vec<&'a Cell>,
}

impl Panel<'_> {
    /// One series per strategy, in the order of measurement.
    pub fn series(&self, value: impl Fn(&Cell) -> f64) -> Vec<Series> {
        let mut series: Vec<Series> = Vec::new();
        for cell in &self.cells {
            let point = (self.x.of(&cell.level), value(cell));
            match series.iter_mut().find(|line| line.strategy == cell.strategy) {
                Some(line) => line.points.push(point),
                None => series.push(Series { strategy: cell.strategy, points: vec![point] }),
            }
        }
        for line in &mut series {
            line.points.sort_by(|one, other| one.0.total_cmp(&other.0));
        }
        series
    }

    /// Compares the fastest strategy with the usual alternatives, at the greatest value
    /// of the dimension.
    pub fn ratios(&self) -> Option<Ratios> {
        let most = self.cells.iter().map(|cell| self.x.of(&cell.level)).max_by(f64::total_cmp)?;
        let there = || self.cells.iter().filter(|cell| self.x.of(&cell.level) == most);
        let rate = |strategy: Strategy| {
            there().find(|cell| cell.strategy == strategy).map(|cell| cell.actions_per_s())
        };
        let best = there().max_by(|one, other| {
            let rank = |cell: &Cell| (cell.strategy != Strategy::SqlxBlind, cell.actions_per_s());
            let (one, other) = (rank(one), rank(other));
            one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
        })?;
        let mut to = Vec::new();
        for other in
            [Strategy::SqlxForUpdate, Strategy::Optimistic, Strategy::Pessimistic, Strategy::SeaOrm]
        {
            if let Some(rate) = rate(other).filter(|rate| *rate > 0.0 && other != best.strategy) {
                to.push((other, best.actions_per_s() / rate));
            }
        }
        let level = self.cells.iter().find(|cell| self.x.of(&cell.level) == most)?.level;
        Some(Ratios {
            best: best.strategy,
            rate: grouped(best.actions_per_s()),
            p99_ms: millis(best.latencies().percentile(99.0)),
            at: level.text(),
            to,
        })
    }
}

/// The fastest strategy that reads before it writes, and its advantage over others.
pub struct Ratios {
    pub best: Strategy,
    pub rate: String,
    pub p99_ms: String,
    pub at: String,
    pub to: Vec<(Strategy, f64)>,
}

/// The panels of a run.
pub fn panels(results: &Results) -> Vec<Panel<'_>> {
    let varies = |dimension: &Dimension| {
        let mut values = results.cells.iter().map(|cell| dimension.of(&cell.level));
        let first = values.next();
        values.any(|value| Some(value) != first)
    };
    let x = DIMENSIONS.into_iter().find(varies).unwrap_or(Dimension::Tasks);
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for cell in &results.cells {
        let held = DIMENSIONS.into_iter().filter(|dimension| *dimension != x);
        let parts: Vec<String> = [Dimension::Wallets, Dimension::Skew, Dimension::Tasks]
            .into_iter()
            .chain([Dimension::Processes, Dimension::Delay])
            .filter(|dimension| held.clone().any(|it| it == *dimension))
            .map(|dimension| dimension.text(&cell.level))
            .filter(|text| !text.is_empty())
            .collect();
        let title = parts.join(", ");
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.cells.push(cell),
            None => panels.push(Panel { title, x, cells: vec![cell] }),
        }
    }
    panels
}
