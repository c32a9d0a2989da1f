//! Colours and letters, for light and dark surroundings.
//!
//! The framework's own strategies are solid lines in full colours; what they are compared
//! with is dashed and quieter. No two differ by colour alone.

use crate::strategy::{Family, Strategy};

/// How a strategy's line is dashed.
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

/// Of the lines and points.
pub const fn width(strategy: Strategy) -> f64 {
    match strategy.family() {
        Family::Ekbatan => 2.75,
        Family::Peer => 1.9,
    }
}

/// Variables and the classes of charts; `s-NAME` is the colour of a strategy.
pub const CHARTS: &str = "\
:root, svg {
  --paper: #ffffff; --card: #ffffff; --ink: #16202c; --quiet: #5b6775; --grid: #e6eaef;
  --rim: #dfe4ea; --optimistic: #1f6fd1; --pessimistic: #b35c00; --coalesced: #0a8459;
  --coalesced-lease: #5a8f00; --adaptive: #7c3fcf; --sqlx-for-update: #566273;
  --sqlx-version: #8a5a83; --sqlx-blind: #20262e; --sea-orm: #c0356b;
}
@media (prefers-color-scheme: dark) {
  :root, svg {
    --paper: #0f151c; --card: #151d26; --ink: #e8edf3; --quiet: #9aa7b5; --grid: #26313d;
    --rim: #2a3643; --optimistic: #62a5f5; --pessimistic: #f0a04b; --coalesced: #36cf97;
    --coalesced-lease: #a5d24a; --adaptive: #b995f7; --sqlx-for-update: #a5b1bf;
    --sqlx-version: #d3a1cb; --sqlx-blind: #f3f6f9; --sea-orm: #f281a9;
  }
}
svg text { font-family: system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; fill: var(--ink); }
svg .paper { fill: var(--paper); }
svg .grid { stroke: var(--grid); stroke-width: 1; }
svg .axis { stroke: var(--quiet); stroke-width: 1; }
svg .tick { font-size: 12px; fill: var(--quiet); }
svg .head { font-size: 15px; font-weight: 650; }
svg .note { font-size: 12.5px; fill: var(--quiet); }
svg .title { font-size: 21px; font-weight: 700; }
svg .label { font-size: 12.5px; font-weight: 600; }
svg .value { font-weight: 400; fill: var(--quiet); }
svg .line { fill: none; stroke: var(--c); stroke-linejoin: round; stroke-linecap: round; }
svg .dot { fill: var(--c); stroke: var(--paper); stroke-width: 1.5; }
svg .ring { fill: var(--paper); stroke: var(--c); stroke-width: 1.75; }
svg .lead { fill: none; stroke: var(--c); stroke-width: 1; opacity: .55; }
svg .s { fill: var(--c); }
.s-optimistic { --c: var(--optimistic); } .s-pessimistic { --c: var(--pessimistic); }
.s-coalesced { --c: var(--coalesced); } .s-coalesced-lease { --c: var(--coalesced-lease); }
.s-adaptive { --c: var(--adaptive); } .s-sqlx-for-update { --c: var(--sqlx-for-update); }
.s-sqlx-version { --c: var(--sqlx-version); } .s-sqlx-blind { --c: var(--sqlx-blind); }
.s-sea-orm { --c: var(--sea-orm); }
";

/// The page around them.
pub const PAGE: &str = "\
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system,
  'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; }
main { max-width: 1240px; margin: 0 auto; padding: 40px 28px 56px; }
h1 { font-size: 32px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -.01em; }
h2 { font-size: 20px; margin: 40px 0 12px; }
p { margin: 6px 0; max-width: 80ch; } .quiet { color: var(--quiet); }
.card { background: var(--card); border: 1px solid var(--rim); border-radius: 12px; padding: 18px 20px; }
.tiles { display: flex; flex-wrap: wrap; gap: 14px; margin: 14px 0; }
.tile { flex: 1 1 190px; background: var(--card); border: 1px solid var(--rim); border-radius: 12px;
  padding: 14px 18px; }
.tile b { display: block; font-size: 30px; line-height: 1.2; letter-spacing: -.01em; }
.tile.own b { color: var(--c); }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(460px, 1fr)); gap: 14px; }
.pair svg { width: 100%; height: auto; display: block; }
.pair .card { --paper: var(--card); padding: 14px 12px 8px; }
.good { color: var(--coalesced); font-weight: 600; } .bad { color: #d0312d; font-weight: 700; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 10px; text-align: right; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th { color: var(--quiet); font-weight: 600; } th:first-child, td:first-child { text-align: left; }
td.s { color: var(--c); font-weight: 600; } tr.level td { padding-top: 16px; font-weight: 650; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; margin: 0; }
dt { font-weight: 600; } dd { margin: 0; color: var(--quiet); }
code, pre { font: 13.5px/1.5 ui-monospace, 'SF Mono', Menlo, 'DejaVu Sans Mono', monospace; }
pre { margin: 10px 0 0; padding: 12px 16px; overflow-x: auto; border: 1px solid var(--rim);
  border-radius: 8px; background: var(--card); }
@media (max-width: 560px) { .pair { grid-template-columns: 1fr; } main { padding: 24px 14px; } }
";
