//! Configuration files: their keys, their values, and the problems of invalid files.

mod encryption;
mod events;
mod files;
mod jobs;
mod layers;
mod locks;
mod places;
#[cfg(feature = "postgres")]
mod postgres;
mod problems;
mod random;
mod relays;
mod rules;
mod secrets;
mod values;

use ekbatan::config::{ConfigError, ConfigProblem, DataSourceConfig};
use ekbatan::prelude::EkbatanConfig;

/// Loads a text without the environment of this process.
fn load(yaml: &str) -> Result<EkbatanConfig, ConfigError> {
    load_with(yaml, [])
}

fn load_with<const N: usize>(
    yaml: &str,
    variables: [(&str, &str); N],
) -> Result<EkbatanConfig, ConfigError> {
    EkbatanConfig::loader().yaml(yaml).env_from(variables).load()
}

/// The problems of an invalid text.
fn problems(yaml: &str) -> Vec<ConfigProblem> {
    match load(yaml) {
        Ok(config) => panic!("nothing is wrong with {yaml}\n{config:#?}"),
        Err(error) => error.problems().to_vec(),
    }
}

/// A configuration in the short form with further keys.
fn database(keys: &str) -> Result<DataSourceConfig, ConfigError> {
    let url = if keys.contains("url") { "" } else { "url: 'postgres://h/d', " };
    let config = load(&format!("ekbatan: {{configs: {{primary-config: {{{url}{keys}}}}}}}"))?;
    Ok(primary(&config))
}

fn primary(config: &EkbatanConfig) -> DataSourceConfig {
    config.sharding.groups[0].members[0].primary().unwrap().clone()
}
