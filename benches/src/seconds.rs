//! The duration of a measurement, as an argument.

/// A part of a second is enough to see that a benchmark works.
pub fn parse(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.05..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it must be a number of seconds between 0.05 and 3600".to_owned()),
    }
}
