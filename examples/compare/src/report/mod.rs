//! The output of a run: a table, and the requested files.

mod chart;
mod csv;
mod html;
mod json;
mod series;
mod style;
mod svg;
mod table;

use std::fs::File;
use std::io::{self, Write, stdout};
use std::path::Path;

use crate::arguments::Arguments;
use crate::failure::Failure;
use crate::results::Results;

/// Prints the table and writes the requested files.
pub fn write(results: &Results, arguments: &Arguments) -> Result<(), Failure> {
    table::write(results, &mut stdout().lock())?;
    if let Some(path) = &arguments.json {
        to(path, |out| json::write(results, out))?;
    }
    if let Some(path) = &arguments.csv {
        to(path, |out| csv::write(results, out))?;
    }
    if let Some(path) = &arguments.html {
        to(path, |out| html::write(results, out))?;
    }
    if let Some(path) = &arguments.svg {
        to(path, |out| out.write_all(svg::picture(results).as_bytes()))?;
    }
    Ok(())
}

fn to(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), Failure> {
    if path.as_os_str() == "-" {
        return Ok(write(&mut stdout().lock())?);
    }
    let written = File::create(path).and_then(|file| {
        let mut out = io::BufWriter::new(file);
        write(&mut out)?;
        out.flush()
    });
    written.map_err(|error| format!("cannot write {}: {error}", path.display()).into())
}
