//! The colours and line styles of charts and of the page.
//!
//! Invariants: a chart carries its light colours as plain attributes, so any viewer draws it,
//! whatever it knows of style sheets. The page adds a dark scheme with plain colours in a media
//! query. No two strategies differ by colour alone: ekbatan's lines are solid, the others dashed.

use clap::ValueEnum;

use crate::strategy::{Family, Strategy};

/// A colour in the light and in the dark scheme.
#[derive(Clone, Copy)]
pub struct Shade {
    pub light: &'static str,
    pub dark: &'static str,
}

const fn shade(light: &'static str, dark: &'static str) -> Shade {
    Shade { light, dark }
}

/// The background of a chart.
pub const PAPER: Shade = shade("#ffffff", "#151d26");
/// Text.
pub const INK: Shade = shade("#16202c", "#e8edf3");
/// Secondary text, and axes.
pub const QUIET: Shade = shade("#5b6775", "#9aa7b5");
/// Grid lines.
pub const GRID: Shade = shade("#e6eaef", "#26313d");

/// The fonts of charts; the first one that is installed is used.
pub const FONTS: &str =
    "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif";

/// The colour of a strategy's line and name.
pub const fn color(strategy: Strategy) -> Shade {
    match strategy {
        Strategy::Default => shade("#00838f", "#4dd0e1"),
        Strategy::Optimistic => shade("#1f6fd1", "#62a5f5"),
        Strategy::Pessimistic => shade("#b35c00", "#f0a04b"),
        Strategy::Coalesced => shade("#0a8459", "#36cf97"),
        Strategy::CoalescedLease => shade("#5a8f00", "#a5d24a"),
        Strategy::Adaptive => shade("#7c3fcf", "#b995f7"),
        Strategy::SqlxForUpdate => shade("#566273", "#a5b1bf"),
        Strategy::SqlxVersion => shade("#8a5a83", "#d3a1cb"),
        Strategy::SqlxBlind => shade("#20262e", "#f3f6f9"),
        Strategy::SeaOrm => shade("#c0356b", "#f281a9"),
    }
}

/// The dash pattern of a strategy's line.
pub const fn dashes(strategy: Strategy) -> &'static str {
    match strategy.family() {
        Family::Ekbatan => "none",
        Family::Peer => match strategy {
            Strategy::SqlxBlind => "1 5",
            Strategy::SqlxVersion => "3 4",
            Strategy::SeaOrm => "9 3 2 3",
            _ => "8 4",
        },
    }
}

/// The width of a strategy's line.
pub const fn width(strategy: Strategy) -> f64 {
    match strategy.family() {
        Family::Ekbatan => 2.75,
        Family::Peer => 1.9,
    }
}

/// The whole style sheet of the page. It refines the attributes of the charts in it.
pub fn page() -> String {
    let names = |pick: fn(Shade) -> &'static str| {
        let rule = |strategy: &Strategy| {
            let (name, color) = (strategy.name(), pick(color(*strategy)));
            format!(".tile.s-{name} b, dt.s-{name}, td.s-{name} {{ color: {color}; }}\n")
        };
        Strategy::value_variants().iter().map(rule).collect::<String>()
    };
    let light = names(|shade| shade.light);
    let dark = names(|shade| shade.dark) + &dark_charts();
    format!("{PAGE}{light}@media (prefers-color-scheme: dark) {{\n{DARK_PAGE}{dark}}}\n")
}

/// Rules that replace the light colours of the charts.
fn dark_charts() -> String {
    let (paper, ink, quiet, grid) = (PAPER.dark, INK.dark, QUIET.dark, GRID.dark);
    let mut rules = format!(
        "svg .ink {{ fill: {ink}; }}\nsvg .quiet {{ fill: {quiet}; }}\n\
         svg .grid {{ stroke: {grid}; }}\nsvg .axis {{ stroke: {quiet}; }}\n"
    );
    for strategy in Strategy::value_variants() {
        let (name, color) = (strategy.name(), color(*strategy).dark);
        rules += &format!(
            "svg .s-{name} .stroke {{ stroke: {color}; }}\nsvg .s-{name} .fill {{ fill: {color}; }}\n\
             svg .s-{name} .dot {{ fill: {color}; stroke: {paper}; }}\n\
             svg .s-{name} .ring {{ fill: {paper}; stroke: {color}; }}\n"
        );
    }
    rules
}

const PAGE: &str = "\
* { box-sizing: border-box; }
body { margin: 0; background: #ffffff; color: #16202c; font: 16px/1.55 system-ui, -apple-system,
  'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 40px 28px 56px; }
h1 { font-size: 32px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 20px; margin: 40px 0 12px; }
p { margin: 6px 0; max-width: 80ch; } .quiet { color: #5b6775; }
.card { background: #ffffff; border: 1px solid #dfe4ea; border-radius: 12px; padding: 18px 20px; }
.tiles { display: flex; flex-wrap: wrap; gap: 14px; margin: 14px 0; }
.tile { flex: 1 1 190px; background: #ffffff; border: 1px solid #dfe4ea; border-radius: 12px;
  padding: 14px 18px; }
.tile b { display: block; font-size: 30px; line-height: 1.2; letter-spacing: -.01em; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 14px; }
.pair svg { width: 100%; height: auto; display: block; }
.pair .card { padding: 14px 12px 8px; }
.good { color: #0a8459; font-weight: 600; } .bad { color: #d0312d; font-weight: 700; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid #e6eaef; white-space: nowrap; }
th { color: #5b6775; font-weight: 600; } th:first-child, td:first-child { text-align: left; }
td.s { font-weight: 600; } tr.level td { padding-top: 16px; font-weight: 650; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
dt { font-weight: 600; } dd { margin: 0; color: #5b6775; }
code, pre { font: 13.5px/1.5 ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace; }
pre { margin: 10px 0 0; padding: 12px 16px; overflow-x: auto; border: 1px solid #dfe4ea;
  border-radius: 8px; background: #ffffff; }
@media (max-width: 560px) { .pair { grid-template-columns: 1fr; } main { padding: 24px 14px; } }
";

const DARK_PAGE: &str = "\
body { background: #0f151c; color: #e8edf3; }
.quiet, th, dd { color: #9aa7b5; }
.card, .tile, pre { background: #151d26; border-color: #2a3643; }
th, td { border-color: #26313d; }
.good { color: #36cf97; }
";
