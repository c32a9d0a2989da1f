//! What a database is reached by, and how much of it is used.

mod data_source;

pub use data_source::{DataSourceConfig, Durability, EkbatanConfig};
