//! A line chart as SVG, with a logarithmic axis for wide ranges, ticks at the measured
//! values, and a name at the end of each line.

use std::fmt::Write;

use super::style;
use crate::progress::grouped;
use crate::strategy::{Family, Strategy};

pub const WIDTH: f64 = 600.0;
pub const HEIGHT: f64 = 400.0;
/// Margins of the plot: for the ticks, and on the right for the names.
const LEFT: f64 = 58.0;
const RIGHT: f64 = 196.0;
const TOP: f64 = 56.0;
const BOTTOM: f64 = 52.0;
/// Minimum distance between names.
const GAP: f64 = 17.0;

pub struct Series {
    pub strategy: Strategy,
    /// From left to right.
    pub points: Vec<(f64, f64)>,
}

pub struct Chart {
    pub title: &'static str,
    pub note: &'static str,
    pub x_label: &'static str,
    /// The unit behind a value.
    pub unit: &'static str,
    pub series: Vec<Series>,
}

/// Maps values to positions.
struct Scale {
    log: bool,
    values: (f64, f64),
    places: (f64, f64),
}

impl Scale {
    fn at(&self, value: f64) -> f64 {
        let of = |value: f64| if self.log { value.ln() } else { value };
        let (low, high) = (of(self.values.0), of(self.values.1));
        let share = if high > low { (of(value) - low) / (high - low) } else { 0.5 };
        self.places.0 + share * (self.places.1 - self.places.0)
    }
}

impl Chart {
    /// The chart as the content of a group with its upper left corner at the origin.
    pub fn draw(&self) -> String {
        let mut svg = String::new();
        self.write(&mut svg).unwrap_or_default(); // Writing to a String cannot fail.
        svg
    }

    fn points(&self) -> impl Iterator<Item = (f64, f64)> + '_ {
        // Zero has no position on a logarithmic axis.
        self.series.iter().flat_map(|line| &line.points).copied().filter(|point| point.1 > 0.0)
    }

    fn write(&self, svg: &mut String) -> std::fmt::Result {
        let (ink, quiet, grid) = (style::INK.light, style::QUIET.light, style::GRID.light);
        write!(
            svg,
            r#"<text class="ink" fill="{ink}" font-size="15" font-weight="600" x="8" y="20">{}</text>"#,
            self.title
        )?;
        write!(
            svg,
            r#"<text class="quiet" fill="{quiet}" font-size="12.5" x="8" y="38">{}</text>"#,
            self.note
        )?;
        let mut xs: Vec<f64> = self.points().map(|point| point.0).collect();
        xs.sort_unstable_by(f64::total_cmp);
        xs.dedup();
        let (Some(&first), Some(&last)) = (xs.first(), xs.last()) else { return Ok(()) };
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let x = Scale {
            log: first > 0.0 && last / first >= 4.0,
            values: (first, last),
            places: (LEFT + 14.0, right - 10.0),
        };
        let low = self.points().map(|point| point.1).fold(f64::INFINITY, f64::min) / 1.25;
        let high = self.points().map(|point| point.1).fold(0.0, f64::max) * 1.25;
        let y = Scale { log: true, values: (low, high), places: (bottom, TOP) };
        for tick in ticks(low, high) {
            let (at, text) = (y.at(tick), short(tick));
            write!(
                svg,
                r#"<path class="grid" stroke="{grid}" fill="none" d="M{LEFT} {at:.1}H{right}"/>"#
            )?;
            let (x, y) = (LEFT - 8.0, at + 4.0);
            write!(
                svg,
                r#"<text class="quiet" fill="{quiet}" font-size="12" text-anchor="end" x="{x}" y="{y:.1}">{text}</text>"#
            )?;
        }
        write!(
            svg,
            r#"<path class="axis" stroke="{quiet}" fill="none" d="M{LEFT} {bottom}H{right}"/>"#
        )?;
        for &tick in &xs {
            let (at, below) = (x.at(tick), bottom + 18.0);
            write!(
                svg,
                r#"<path class="axis" stroke="{quiet}" fill="none" d="M{at:.1} {bottom}v4"/>"#
            )?;
            write!(
                svg,
                r#"<text class="quiet" fill="{quiet}" font-size="12" text-anchor="middle" x="{at:.1}" y="{below}">{tick}</text>"#
            )?;
        }
        let (middle, below) = (f64::midpoint(LEFT, right), bottom + 38.0);
        write!(
            svg,
            r#"<text class="quiet" fill="{quiet}" font-size="12.5" text-anchor="middle" x="{middle}" y="{below}">{}</text>"#,
            self.x_label
        )?;
        // Ekbatan's lines are drawn on top of the others.
        let own = |line: &&Series| line.strategy.family() == Family::Ekbatan;
        for line in self.series.iter().filter(|line| !own(line)) {
            self.draw_series(svg, line, &x, &y)?;
        }
        for line in self.series.iter().filter(own) {
            self.draw_series(svg, line, &x, &y)?;
        }
        self.names(svg, &x, &y)
    }

    fn draw_series(
        &self,
        svg: &mut String,
        line: &Series,
        x: &Scale,
        y: &Scale,
    ) -> std::fmt::Result {
        let strategy = line.strategy;
        let (name, dashes, width) =
            (strategy.name(), style::dashes(strategy), style::width(strategy));
        let (color, paper) = (style::color(strategy).light, style::PAPER.light);
        let points = || line.points.iter().filter(|point| point.1 > 0.0);
        let places: Vec<String> =
            points().map(|&(a, b)| format!("{:.1} {:.1}", x.at(a), y.at(b))).collect();
        write!(svg, r#"<g class="s-{name}">"#)?;
        write!(
            svg,
            r#"<path class="stroke" stroke="{color}" fill="none" stroke-width="{width}" stroke-dasharray="{dashes}" stroke-linejoin="round" stroke-linecap="round" d="M{}"/>"#,
            places.join("L")
        )?;
        let dot = if strategy.family() == Family::Ekbatan {
            format!(r#"class="dot" fill="{color}" stroke="{paper}" stroke-width="1.5""#)
        } else {
            format!(r#"class="ring" fill="{paper}" stroke="{color}" stroke-width="1.75""#)
        };
        for &(a, b) in points() {
            let (cx, cy, value) = (x.at(a), y.at(b), grouped(b));
            write!(
                svg,
                r#"<circle {dot} cx="{cx:.1}" cy="{cy:.1}" r="4"><title>{name}, {a}: {value} {}</title></circle>"#,
                self.unit
            )?;
        }
        write!(svg, "</g>")
    }

    /// Draws each name beside the end of its line, moved so that names do not overlap.
    fn names(&self, svg: &mut String, x: &Scale, y: &Scale) -> std::fmt::Result {
        let mut ends: Vec<(f64, f64, &Series, f64)> = Vec::new();
        for line in &self.series {
            if let Some(&(a, b)) = line.points.iter().rev().find(|point| point.1 > 0.0) {
                ends.push((y.at(b), x.at(a), line, b));
            }
        }
        ends.sort_by(|one, other| one.0.total_cmp(&other.0));
        let wanted: Vec<f64> = ends.iter().map(|end| end.0).collect();
        let places = spread(&wanted, GAP, TOP, HEIGHT - BOTTOM);
        for ((end, from, line, value), place) in ends.into_iter().zip(places) {
            let (name, value) = (line.strategy.name(), grouped(value));
            let (color, quiet) = (style::color(line.strategy).light, style::QUIET.light);
            let (lead, text) = (WIDTH - RIGHT + 14.0, WIDTH - RIGHT + 18.0);
            write!(
                svg,
                r#"<g class="s-{name}"><path class="stroke" stroke="{color}" fill="none" opacity="0.55" d="M{:.1} {end:.1}L{lead} {place:.1}"/><text font-size="12.5" font-weight="600" x="{text}" y="{:.1}"><tspan class="fill" fill="{color}">{name}</tspan><tspan class="quiet" fill="{quiet}" font-weight="400" dx="6">{value} {}</tspan></text></g>"#,
                from + 6.0,
                place + 4.0,
                self.unit
            )?;
        }
        Ok(())
    }
}

/// Positions with a minimum distance, within bounds if there is room, and close to
/// `wanted`, which must be ascending. One pass goes down, one goes up.
fn spread(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    let mut least = top;
    for place in &mut places {
        *place = place.max(least);
        least = *place + gap;
    }
    let mut most = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(most);
        most = *place - gap;
    }
    places
}

/// Round values within bounds, as few as show the scale.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    const STEPS: [&[f64]; 4] =
        [&[1.0], &[1.0, 3.0], &[1.0, 2.0, 5.0], &[1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0]];
    let (from, to) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let mut found = Vec::new();
    for steps in STEPS {
        found = (from..=to)
            .flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)))
            .filter(|value| (low..=high).contains(value))
            .collect();
        if found.len() >= 4 {
            break;
        }
    }
    found
}

/// The label of a tick: 20k instead of 20000.
fn short(value: f64) -> String {
    let trimmed = |value: f64, unit: &str| {
        let text = format!("{value:.2}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match value {
        _ if value >= 1e6 => trimmed(value / 1e6, "M"),
        _ if value >= 1e3 => trimmed(value / 1e3, "k"),
        _ => trimmed(value, ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_distance_and_their_order() {
        let places = spread(&[10.0, 11.0, 12.0, 95.0, 99.0], 10.0, 0.0, 100.0);
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] >= 10.0));
        assert!(places[0] >= 0.0 && places[4] <= 100.0);
        assert_eq!(spread(&[5.0, 50.0], 10.0, 0.0, 100.0), [5.0, 50.0]);
    }

    #[test]
    fn ticks_are_round_and_never_few() {
        assert_eq!(ticks(0.9, 1_500.0), [1.0, 10.0, 100.0, 1_000.0]);
        assert!(ticks(900.0, 2_500.0).len() >= 4);
        assert_eq!(["20k", "1.5k", "500", "0.2"], [20e3, 1.5e3, 500.0, 0.2].map(short)[..]);
    }
}
