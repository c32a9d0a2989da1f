//! Step 1: reads a configuration from files, the environment and code.
//!
//! In the order of the work:
//!
//! 1. [`loader`] runs the step.
//! 2. [`yaml`] parses files; [`environment`] and [`dotted`] turn the names of variables and
//!    settings into key paths.
//! 3. [`canonical`] brings keys to one spelling; [`layers`] merges the sources.
//! 4. [`reader`] checks every value against the table of keys and produces a [`section`].
//! 5. [`build`] and [`data_source`] make the configuration from the sections.

mod build;
mod canonical;
mod data_source;
mod dotted;
mod duration;
mod environment;
mod events;
mod interpolation;
mod jdbc;
mod jobs;
mod layers;
mod loader;
mod reader;
mod relays;
mod section;
mod tree;
mod yaml;

pub use loader::ConfigLoader;
