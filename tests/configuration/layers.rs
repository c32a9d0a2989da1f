//! Precedence: a later file overrides an earlier one, the environment overrides files, and code
//! overrides both.

use ekbatan::config::{ConfigSource, ExposeSecret};
use ekbatan::prelude::EkbatanConfig;

use super::primary;

const FILE: &str = "ekbatan:
  namespace: file
  sharding:
    default-shard: {group: 0, member: 0}
    groups:
      - group: 0
        name: main
        members:
          - member: 0
            configs:
              primary-config: {url: 'postgres://file/d', lanes: 1, fold-limit: 1, minimum-idle: 1}
              reporting: {url: 'postgres://file/d', lanes: 1}
";
const FIRST: &str = "EKBATAN_SHARDING_GROUPS_0_MEMBERS_0_CONFIGS_PRIMARY_CONFIG_";

#[test]
fn the_environment_overrides_files_and_code_overrides_both() {
    let config = EkbatanConfig::loader()
        .set("ekbatan.sharding.groups[0].members[0].configs.primaryConfig.foldLimit", 9)
        .yaml(FILE)
        .env_from([(format!("{FIRST}FOLD_LIMIT"), "5"), (format!("{FIRST}LANES"), "5")])
        .load()
        .unwrap();
    let source = primary(&config);
    assert_eq!((source.minimum_idle, source.lanes, source.fold_limit), (1, Some(5), 9));
}

#[test]
fn a_later_file_overrides_key_by_key_in_any_spelling() {
    let config = EkbatanConfig::loader()
        .yaml("ekbatan: {namespace: first, configs: {primary-config: {url: 'sqlite:a.db', fold-limit: 3}}}")
        .yaml("ekbatan: {namespace: second, configs: {primaryConfig: {foldLimit: 4}}}")
        .yaml("other: 1")
        .env_from([("", ""); 0])
        .load()
        .unwrap();
    assert_eq!(config.namespace.as_deref(), Some("second"));
    let source = primary(&config);
    assert_eq!((source.url.as_str(), source.fold_limit), ("sqlite:a.db", 4));
}

#[test]
fn a_slot_with_a_number_is_one_slot_in_every_source() {
    let config = EkbatanConfig::loader()
        .yaml("ekbatan: {configs: {primary-config: {url: 'sqlite:a'}, reports-2-config: {url: 'sqlite:b', fold-limit: 3}}}")
        .yaml("ekbatan: {configs: {reports2Config: {lanes: 4}}}")
        .env_from([("EKBATAN_CONFIGS_REPORTS_2_CONFIG_QUEUE_LIMIT", "5")])
        .set("ekbatan.configs.reports_2_config.minimum-idle", 6)
        .load()
        .unwrap();
    let configs = &config.sharding.groups[0].members[0].configs;
    assert_eq!(configs.keys().collect::<Vec<_>>(), ["primaryConfig", "reports2Config"]);
    let source = &configs["reports2Config"];
    assert_eq!((source.url.as_str(), source.fold_limit), ("sqlite:b", 3));
    assert_eq!((source.lanes, source.queue_limit, source.minimum_idle), (Some(4), 5, 6));
}

#[test]
fn a_list_in_a_later_file_replaces_the_earlier_list() {
    let config = EkbatanConfig::loader()
        .yaml(FILE)
        .yaml("ekbatan: {sharding: {groups: [{group: 0, name: other, members: [{member: 0, configs: {primary-config: {url: 'sqlite:b.db'}}}]}]}}")
        .env_from([("", ""); 0])
        .load()
        .unwrap();
    assert_eq!(config.sharding.groups.len(), 1);
    assert_eq!(config.sharding.groups[0].name, "other");
    let source = primary(&config);
    assert_eq!((source.url.as_str(), source.fold_limit), ("sqlite:b.db", 64));
}

#[test]
fn behaviour_96_secrets_from_the_environment_stay_unchanged() {
    for secret in ["0123", "true", "", "${HOME}", "1e5", " x ", "a"] {
        let config = EkbatanConfig::loader()
            .yaml(FILE)
            .env_from([(format!("{FIRST}PASSWORD"), secret), (format!("{FIRST}USERNAME"), "007")])
            .load()
            .unwrap();
        let source = primary(&config);
        assert_eq!(source.password.unwrap().expose_secret(), secret);
        assert_eq!(source.username.as_deref(), Some("007"));
    }
}

#[test]
fn the_environment_adds_slots_members_and_a_whole_configuration() {
    let at = "EKBATAN_SHARDING_GROUPS_0_MEMBERS";
    let config = EkbatanConfig::loader()
        .yaml(FILE)
        .env_from([
            (format!("{at}_1_MEMBER"), "7"),
            (format!("{at}_1_CONFIGS_PRIMARY_CONFIG_JDBC_URL"), "jdbc:postgresql://env/d"),
            (format!("{at}_0_CONFIGS_LOCKCONFIG_URL"), "redis://cache"),
            (format!("{at}_0_CONFIGS_REPORTING_LANES"), "3"),
        ])
        .load()
        .unwrap();
    let shards: Vec<_> = config.sharding.shards().collect();
    assert_eq!(shards[1].0.to_string(), "0/7");
    assert_eq!(shards[1].1.primary().unwrap().url, "postgres://env/d");
    assert_eq!(shards[0].1.config_for("lock-config").unwrap().url, "redis://cache");
    assert_eq!(shards[0].1.config_for("reporting").unwrap().lanes, Some(3));

    let config = EkbatanConfig::loader()
        .env_from([("EKBATAN_CONFIGS_PRIMARY_CONFIG_URL", "sqlite:only.db")])
        .load()
        .unwrap();
    assert_eq!(primary(&config).url, "sqlite:only.db");
}

#[test]
fn a_gap_in_a_list_is_reported() {
    let error = EkbatanConfig::loader()
        .yaml(FILE)
        .env_from([("EKBATAN_SHARDING_GROUPS_2_NAME", "x")])
        .load()
        .unwrap_err();
    assert_eq!(error.problems().len(), 1, "{error}");
    assert!(
        error.to_string().contains("the list has 1 entries, so the next index is 1"),
        "{error}"
    );
}

#[test]
fn a_missing_variable_is_ignored_if_another_source_overrides_it() {
    let config = EkbatanConfig::loader()
        .yaml("ekbatan: {configs: {primary-config: {url: '${NOWHERE}'}}}")
        .env_from([("", ""); 0])
        .set("ekbatan.configs.primary-config.url", "sqlite:a.db")
        .load()
        .unwrap();
    assert_eq!(primary(&config).url, "sqlite:a.db");
}

#[test]
fn overrides_from_the_environment_can_be_disabled() {
    let config = EkbatanConfig::loader()
        .yaml("ekbatan: {namespace: '${NAME}', configs: {primary-config: {url: 'sqlite:a.db'}}}")
        .env_from([("EKBATAN_NAMESPACE", "env"), ("NAME", "file"), ("EKBATAN_WHATEVER", "x")])
        .environment(false)
        .load()
        .unwrap();
    assert_eq!(config.namespace.as_deref(), Some("file"));
}

#[test]
fn code_may_set_a_whole_section() {
    let config = EkbatanConfig::loader()
        .env_from([("", ""); 0])
        .set("ekbatan", serde_json::json!({"configs": {"primaryConfig": {"url": "sqlite:a.db", "foldLimit": 3}}}))
        .load()
        .unwrap();
    assert_eq!(primary(&config).fold_limit, 3);
}

#[test]
fn two_variables_for_one_key_are_reported() {
    let error = EkbatanConfig::loader()
        .yaml(FILE)
        .env_from([(format!("{FIRST}FOLD_LIMIT"), "5"), (format!("{FIRST}FOLDLIMIT"), "6")])
        .load()
        .unwrap_err();
    assert_eq!(error.problems().len(), 1, "{error}");
    assert!(error.to_string().contains("FOLD_LIMIT") && error.to_string().contains("FOLDLIMIT"));
}

#[test]
fn a_file_without_the_root_key_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("app.yml");
    let configs = "{primary-config: {url: 'sqlite:a.db'}}";
    for (text, instead) in [
        (String::new(), None),
        ("server: {port: 8080}".to_owned(), None),
        ("spring: {profiles: {active: dev}}".to_owned(), None),
        (format!("ekbatn: {{configs: {configs}}}"), Some("`ekbatn`")),
        (format!("configs: {configs}"), Some("`configs`")),
    ] {
        std::fs::write(&path, &text).unwrap();
        let error = EkbatanConfig::loader().file(&path).env_from([("", ""); 0]).load().unwrap_err();
        let problem = &error.problems()[0];
        assert_eq!(problem.source, ConfigSource::File(path.clone()), "{text}");
        let expected = instead.map(|key| format!("; there is {key} at the top instead"));
        let said = problem.message.split_once("}}`").unwrap().1;
        assert_eq!(said, expected.unwrap_or_default(), "{text}");
    }
}
