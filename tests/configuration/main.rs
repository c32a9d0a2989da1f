//! What a configuration file may say, what it means, and what is said of one that is wrong.

mod files;
mod layers;
mod locks;
mod places;
#[cfg(feature = "postgres")]
mod postgres;
mod problems;
mod random;
mod rules;
mod secrets;
mod values;

use ekbatan::config::{ConfigError, ConfigProblem, DataSourceConfig};
use ekbatan::prelude::EkbatanConfig;

/// Loads a text, without the environment of this process.
fn load(yaml: &str) -> Result<EkbatanConfig, ConfigError> {
    load_with(yaml, [])
}

fn load_with<const N: usize>(
    yaml: &str,
    variables: [(&str, &str); N],
) -> Result<EkbatanConfig, ConfigError> {
    EkbatanConfig::loader().yaml(yaml).env_from(variables).load()
}

/// The problems of a text, which has to have some.
fn problems(yaml: &str) -> Vec<ConfigProblem> {
    match load(yaml) {
        Ok(config) => panic!("nothing is wrong with {yaml}\n{config:#?}"),
        Err(error) => error.problems().to_vec(),
    }
}

/// The database of the short form, with these further keys.
fn database(keys: &str) -> Result<DataSourceConfig, ConfigError> {
    let url = if keys.contains("url") { "" } else { "url: 'postgres://h/d', " };
    let config = load(&format!("ekbatan: {{configs: {{primary-config: {{{url}{keys}}}}}}}"))?;
    Ok(primary(&config))
}

fn primary(config: &EkbatanConfig) -> DataSourceConfig {
    config.sharding.groups[0].members[0].primary().unwrap().clone()
}
