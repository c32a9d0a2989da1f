//! The files in `config/`, and the blocks of YAML in the guide.

use std::path::PathBuf;

use ekbatan::config::{Dialect, json_schema};
use ekbatan::prelude::EkbatanConfig;

const VARIABLES: [(&str, &str); 5] = [
    ("WALLET_DB_PASSWORD", "w"),
    ("EUROPE_PASSWORD", "e"),
    ("AMERICA_PASSWORD", "a"),
    ("HEADQUARTERS_PASSWORD", "h"),
    ("ACQUIRED_PASSWORD", "q"),
];

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn load(name: &str) -> EkbatanConfig {
    let config = EkbatanConfig::loader().file(path("config").join(name)).env_from(VARIABLES).load();
    config.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_wallet_is_one_file() {
    let config = load("wallet.yml");
    assert_eq!(config.namespace.as_deref(), Some("com.example.wallet"));
    let shards: Vec<_> = config.sharding.shards().collect();
    assert_eq!(shards.len(), 1);
    assert_eq!(shards[0].0, config.sharding.default_shard);
    let primary = super::primary(&config);
    assert_eq!((primary.dialect(), primary.maximum_pool_size), (Some(Dialect::Sqlite), 4));
    assert!(config.ignored().is_empty());
}

#[test]
fn the_wallet_on_a_server_takes_its_host_from_the_environment() {
    let primary = super::primary(&load("wallet-postgres.yml"));
    assert_eq!(primary.url, "postgres://localhost:5432/wallet");
    assert_eq!(primary.leak_detection_threshold.as_secs(), 60);
}

#[test]
fn the_shards_have_replicas_and_connections_for_locks() {
    let config = load("sharded.yml");
    let shards: Vec<_> = config.sharding.shards().collect();
    assert_eq!(
        shards.iter().map(|(shard, _)| shard.to_string()).collect::<Vec<_>>(),
        ["0/0", "1/0"]
    );
    for (_, shard) in shards {
        assert_eq!(shard.primary().unwrap().maximum_pool_size, 20);
        assert!(shard.secondary().unwrap().url.contains("-replica"));
        assert_eq!(shard.config_for("lock-config").unwrap().maximum_pool_size, 3);
        assert!(shard.config_for("lockConfig").unwrap().password.is_some());
    }
}

#[test]
fn the_mixture_has_a_dialect_for_each_shard() {
    let config = load("mixed.yml");
    let dialects: Vec<_> =
        config.sharding.shards().map(|(_, shard)| shard.primary().unwrap().dialect()).collect();
    let sqlite = Some(Dialect::Sqlite);
    assert_eq!(dialects, [Some(Dialect::Postgres), Some(Dialect::MariaDb), sqlite, sqlite]);
}

#[test]
fn the_schema_that_is_checked_in_is_the_one_of_the_keys() {
    let text = std::fs::read_to_string(path("config/ekbatan.schema.json")).unwrap();
    let checked_in: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(
        checked_in == json_schema(),
        "run `cargo run --example config_schema > config/ekbatan.schema.json`"
    );
}

#[test]
fn every_file_points_editors_to_the_schema() {
    for name in ["wallet.yml", "wallet-postgres.yml", "sharded.yml", "mixed.yml"] {
        let text = std::fs::read_to_string(path("config").join(name)).unwrap();
        assert!(
            text.starts_with("# yaml-language-server: $schema=./ekbatan.schema.json\n"),
            "{name}"
        );
    }
}
