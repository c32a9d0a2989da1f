//! The files in `config/`, and the YAML blocks of the guide.

use std::path::PathBuf;

use ekbatan::config::{Dialect, LockProviderKind, LockStrategy, json_schema};
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
fn the_wallet_file_names_one_database() {
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
fn the_server_file_takes_its_host_from_the_environment() {
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
fn the_mixed_file_has_a_dialect_for_each_shard() {
    let config = load("mixed.yml");
    let dialects: Vec<_> =
        config.sharding.shards().map(|(_, shard)| shard.primary().unwrap().dialect()).collect();
    let sqlite = Some(Dialect::Sqlite);
    assert_eq!(dialects, [Some(Dialect::Postgres), Some(Dialect::MariaDb), sqlite, sqlite]);
}

#[test]
fn the_locks_are_chosen_by_shard() {
    let config = load("locks.yml");
    let kinds: Vec<_> = config
        .sharding
        .shards()
        .map(|(_, shard)| shard.locks().map(|locks| (locks.provider, locks.strategy)))
        .collect();
    let lease = |kind| Some((kind, LockStrategy::Lease));
    assert_eq!(
        kinds,
        [
            lease(LockProviderKind::Postgres),
            Some((LockProviderKind::Postgres, LockStrategy::Session)),
            lease(LockProviderKind::Redis),
            lease(LockProviderKind::InProcess),
        ]
    );
    assert!(config.ignored().is_empty());
}

#[test]
fn the_schema_file_is_up_to_date() {
    let text = std::fs::read_to_string(path("config/ekbatan.schema.json")).unwrap();
    let checked_in: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(
        checked_in == json_schema(),
        "run `cargo run --example config_schema > config/ekbatan.schema.json`"
    );
}

#[test]
fn every_file_names_the_schema() {
    for name in ["wallet.yml", "wallet-postgres.yml", "sharded.yml", "mixed.yml", "locks.yml"] {
        let text = std::fs::read_to_string(path("config").join(name)).unwrap();
        assert!(
            text.starts_with("# yaml-language-server: $schema=./ekbatan.schema.json\n"),
            "{name}"
        );
    }
}

/// The fenced blocks of a page: the info string and the text.
fn blocks(page: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let text: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push((language.to_owned(), text.join("\n")));
        }
    }
    blocks
}

#[test]
fn files_in_the_guide_load_and_errors_in_the_guide_are_printed() {
    let page = std::fs::read_to_string(path("docs/src/configuration.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let blocks = blocks(&page);
    let mut loaded = 0;
    for (position, (language, text)) in blocks.iter().enumerate() {
        if language != "yaml" {
            continue;
        }
        let file = folder.path().join("wallet.yml");
        std::fs::write(&file, text).unwrap();
        let answer = EkbatanConfig::loader().file(&file).env_from(VARIABLES).load();
        let error = answer
            .err()
            .map(|error| error.to_string().replace(&format!("{}/", folder.path().display()), ""));
        let said = blocks.get(position + 1).filter(|(language, _)| language == "text");
        assert_eq!(error.as_ref(), said.map(|(_, text)| text));
        loaded += 1;
    }
    assert_eq!(loaded, 7);
}

#[test]
fn the_guide_names_every_key() {
    let page = std::fs::read_to_string(path("docs/src/configuration.md")).unwrap();
    let schema = json_schema();
    for section in ["database", "locks", "sharding", "groups", "members"] {
        let section = &schema["definitions"][section];
        let section = section.get("items").unwrap_or(section);
        for key in section["properties"].as_object().unwrap().keys() {
            let kebab = !key.chars().any(char::is_uppercase);
            assert!(!kebab || page.contains(&format!("`{key}`")), "{key}");
        }
    }
}
