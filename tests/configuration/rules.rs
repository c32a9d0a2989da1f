//! Configurations in code obey the same rules as loaded ones.

use std::time::Duration;

use ekbatan::config::{ConfigSource, DataSourceConfig, ShardMemberConfig, UnknownShard};
use ekbatan::domain::ShardIdentifier;
use ekbatan::prelude::EkbatanConfig;

fn shard(group: u32, member: u32) -> ShardIdentifier {
    ShardIdentifier::new(group, member).unwrap()
}

fn postgres(host: &str) -> DataSourceConfig {
    DataSourceConfig::new(format!("postgres://{host}/d"))
}

#[test]
fn a_single_database_is_shard_0_0_of_the_group_main() {
    let config = EkbatanConfig::single("sqlite:a.db");
    config.check().unwrap();
    assert_eq!(config.sharding.groups[0].name, "main");
    assert_eq!(config.sharding.default_shard, ShardIdentifier::DEFAULT);
    assert_eq!(config.sharding.unknown_shard, UnknownShard::Error);
    assert!(config.sharding.member(ShardIdentifier::DEFAULT).is_some());
}

#[test]
fn shards_added_in_code_are_visited_by_group_and_member() {
    let config = EkbatanConfig::from(postgres("a"))
        .shard(shard(3, 1), ShardMemberConfig::new(9, postgres("b")))
        .shard(
            shard(3, 0),
            ShardMemberConfig::new(0, postgres("c")).with("lock-config", postgres("c")),
        )
        .shard(shard(0, 2), ShardMemberConfig::new(0, postgres("d")))
        .default_shard(shard(3, 1))
        .unknown_shard(UnknownShard::DefaultShard)
        .replica(postgres("replica"));
    config.check().unwrap();
    let order: Vec<_> = config.sharding.shards().map(|(shard, _)| shard.to_string()).collect();
    assert_eq!(order, ["0/0", "0/2", "3/0", "3/1"]);
    let default = config.sharding.member(shard(3, 1)).unwrap();
    assert_eq!(default.secondary().unwrap().url, "postgres://replica/d");
    let locks = config.sharding.member(shard(3, 0)).unwrap();
    for spelling in ["lockConfig", "lock-config", "LOCK_CONFIG"] {
        assert!(locks.config_for(spelling).is_some());
    }
    assert_eq!(locks.configs.keys().collect::<Vec<_>>(), ["lockConfig", "primaryConfig"]);
}

#[test]
fn check_reports_all_problems_at_once() {
    let bad = postgres("a")
        .maximum_pool_size(0)
        .lanes(0)
        .leak_detection_threshold(Duration::from_secs(1))
        .max_lifetime(Duration::from_secs(1))
        .username(" ");
    let mut config = EkbatanConfig::from(bad)
        .shard(shard(0, 0), ShardMemberConfig::new(0, postgres("b")))
        .shard(shard(0, 1), ShardMemberConfig::new(0, postgres("a")))
        .replica(postgres("x").minimum_idle(11));
    config.sharding.groups[0].name = String::new();
    config.sharding.groups[0].members[2].member = 64;
    let error = config.check().unwrap_err();
    let found: Vec<_> = error
        .problems()
        .iter()
        .map(|p| p.path.trim_start_matches("ekbatan.sharding.groups[0].").to_owned())
        .collect();
    for path in [
        "name",
        "members[0].configs.primary-config.maximum-pool-size",
        "members[0].configs.primary-config.lanes",
        "members[0].configs.primary-config.leak-detection-threshold",
        "members[0].configs.primary-config.max-lifetime",
        "members[0].configs.primary-config.username",
        "members[0].configs.secondary-config.minimum-idle",
        "members[1].member",
        "members[2].member",
        "members[2].configs.primary-config.url",
    ] {
        assert!(found.iter().any(|found| found == path), "{path}\n{error}");
    }
    assert_eq!(found.len(), 10, "{error}");
    assert!(error.problems().iter().all(|problem| problem.source == ConfigSource::Code));
}

type SetTime = fn(DataSourceConfig, Duration) -> DataSourceConfig;

/// Databases count milliseconds in 31 bits, and clocks overflow.
#[test]
fn times_are_bounded() {
    let set: [(&str, SetTime); 8] = [
        ("idle-timeout", DataSourceConfig::idle_timeout),
        ("max-lifetime", DataSourceConfig::max_lifetime),
        ("leak-detection-threshold", DataSourceConfig::leak_detection_threshold),
        ("connection-timeout", DataSourceConfig::connection_timeout),
        ("read-timeout", DataSourceConfig::read_timeout),
        ("commit-timeout", DataSourceConfig::commit_timeout),
        ("settle-timeout", DataSourceConfig::settle_timeout),
        ("statement-timeout", DataSourceConfig::statement_timeout),
    ];
    let day = Duration::from_secs(86_400);
    for (key, set) in set {
        for time in [Duration::MAX, day * 25] {
            let error = EkbatanConfig::from(set(postgres("a"), time)).check().unwrap_err();
            let message = error.to_string();
            assert!(message.contains(key) && message.contains(&format!("{time:?}")), "{message}");
            assert!(message.contains("is too long; at most 24d"), "{message}");
        }
        EkbatanConfig::from(set(postgres("a"), day * 24)).check().unwrap();
    }
}

#[test]
fn counts_and_sizes_are_bounded() {
    type Setter = fn(DataSourceConfig, usize) -> DataSourceConfig;
    let set: [(&str, Setter); 4] = [
        ("fold-limit", DataSourceConfig::fold_limit),
        ("queue-limit", DataSourceConfig::queue_limit),
        ("max-row-bytes", DataSourceConfig::max_row_bytes),
        ("max-commit-bytes", DataSourceConfig::max_commit_bytes),
    ];
    for (key, set) in set {
        let error = EkbatanConfig::from(set(postgres("a"), usize::MAX)).check().unwrap_err();
        let message = error.to_string();
        assert!(message.contains(key) && message.contains("is too many; at most"), "{message}");
    }
}

#[test]
fn behaviour_61_the_default_shard_must_be_one_of_the_shards() {
    let error =
        EkbatanConfig::single("sqlite:a.db").default_shard(shard(1, 0)).check().unwrap_err();
    assert!(
        error.to_string().contains("= \"1/0\": is not one of the shards; they are 0/0"),
        "{error}"
    );
}
