//! Every kind of problem, with its place and its text.

use super::{load, load_with, problems};

/// Checks that each text has one problem, at this path and with this text.
fn each(cases: &[(&str, &str, &str)]) {
    for (yaml, path, words) in cases {
        let found = problems(yaml);
        assert_eq!(found.len(), 1, "{yaml}\n{found:#?}");
        assert_eq!(found[0].path, *path, "{yaml}\n{found:#?}");
        assert!(found[0].to_string().contains(words), "{yaml}\n{}", found[0]);
    }
}

fn sharding(inside: &str) -> String {
    format!("ekbatan: {{sharding: {{default-shard: {{group: 0, member: 0}}, {inside}}}}}")
}

fn group(number: &str, members: &str) -> String {
    format!("{{group: {number}, name: g, members: [{members}]}}")
}

fn member(number: &str) -> String {
    let file = number.trim_start_matches('-');
    format!("{{member: {number}, configs: {{primary-config: {{url: 'sqlite:{file}.db'}}}}}}")
}

#[test]
fn behaviour_63_a_missing_primary_config_is_reported() {
    each(&[
        (
            "ekbatan: {configs: {}}",
            "ekbatan.configs.primary-config",
            "is missing; every shard needs this database",
        ),
        (
            "ekbatan: {configs: {lock-config: {url: 'redis://h'}}}",
            "ekbatan.configs.primary-config",
            "is missing; every shard needs this database",
        ),
        (
            "ekbatan: {configs: {primary: {url: 'sqlite:a'}}}",
            "ekbatan.configs.primary-config",
            "every shard needs this database; there is `primary`: did you mean `primary-config`?",
        ),
        (
            &sharding(&format!("groups: [{}]", group("0", "{member: 0, configs: {}}"))),
            "ekbatan.sharding.groups[0].members[0].configs.primary-config",
            "is missing",
        ),
        (
            &sharding(&format!("groups: [{}]", group("0", "{member: 0}"))),
            "ekbatan.sharding.groups[0].members[0].configs",
            "is missing",
        ),
    ]);
}

#[test]
fn an_address_with_capitals_or_without_a_port_number_is_reported() {
    let database =
        |url: &str| format!("ekbatan: {{configs: {{primary-config: {{url: '{url}'}}}}}}");
    let at = "ekbatan.configs.primary-config.url";
    each(&[
        (&database("Postgres://db/shop"), at, "begins with capitals; write `postgres:`"),
        (&database("SQLITE:a"), at, "begins with capitals; write `sqlite:`"),
        (
            &database("postgres://app:s3cret@db:54x/shop"),
            at,
            "\"postgres://app:***@db:54x/shop\": has a port that is no number from 1 to 65535",
        ),
        (&database("mysql://db:65536/shop"), at, "has a port that is no number"),
        (&database("mariadb://[::1]:0/shop"), at, "has a port that is no number"),
    ]);
}

#[test]
fn two_shards_in_one_place_are_reported_however_the_place_is_written() {
    let member = |number: u8, url: &str| {
        format!("{{member: {number}, configs: {{primary-config: {{url: '{url}'}}}}}}")
    };
    for (first, second) in [
        ("sqlite:a", "sqlite:./a"),
        ("sqlite:a", "sqlite://a"),
        ("sqlite:a", "sqlite:./tests/../a"),
        ("sqlite:a", "sqlite:a?mode=rwc"),
        ("postgres://db/shop", "postgresql://app@DB:5432/sh%6Fp"),
        ("postgres://db/shop", "postgres://db/shop?port=5432"),
        ("postgres://db:5433/shop", "postgres://db/shop?port=5433"),
        ("postgres:///shop?host=db", "postgres://db/shop"),
        ("postgres://db/shop#europe", "postgres://db/shop#america"),
    ] {
        let members = format!("{}, {}", member(0, first), member(1, second));
        each(&[(
            &sharding(&format!("groups: [{}]", group("0", &members))),
            "ekbatan.sharding.groups[0].members[1].configs.primary-config.url",
            "is already the database of ekbatan.sharding.groups[0].members[0].configs.primary-config",
        )]);
    }
}

#[test]
fn behaviour_63_an_unknown_key_is_reported_with_the_nearest_known_key() {
    each(&[
        (
            "ekbatan: {configs: {primary-config: {url: 'sqlite:a', maxPoolSize: 3}}}",
            "ekbatan.configs.primary-config.maxPoolSize",
            "there is no key `maxPoolSize`; did you mean `maximum-pool-size`?",
        ),
        (
            "ekbatan: {configs: {primary-config: {url: 'sqlite:a'}}, colour: blue}",
            "ekbatan.colour",
            "the keys here are namespace, sharding, configs",
        ),
        (
            &sharding(&format!("groups: [{}], unknownShards: error", group("0", &member("0")))),
            "ekbatan.sharding.unknownShards",
            "did you mean `unknown-shard`?",
        ),
    ]);
}

#[test]
fn a_misspelled_slot_is_reported() {
    let slot = |slot: &str| {
        format!(
            "ekbatan: {{configs: {{primary-config: {{url: 'postgres://h/d'}}, {slot}: {{url: 'postgres://r/d'}}}}}}"
        )
    };
    for (name, known) in [
        ("secondary-confg", "secondary-config"),
        ("secondry-config", "secondary-config"),
        ("secondary-cofnig", "secondary-config"),
        ("primry-confg", "primary-config"),
        ("lock-confg", "lock-config"),
        ("lock-conf", "lock-config"),
        ("locks-config", "lock-config"),
        ("lokc-config", "lock-config"),
    ] {
        let path = format!("ekbatan.configs.{name}");
        each(&[(&slot(name), &path, &format!("is almost `{known}`"))]);
    }
    for own in [
        "log-config",
        "clock-config",
        "local-config",
        "docs-config",
        "secondary2-config",
        "secondary-config-2",
        "secondary-eu-config",
        "secondary-b-config",
        "secondaryEUConfig",
        "reporting-config",
        "jobs-config",
    ] {
        load(&slot(own)).unwrap();
    }
    let variables = [("EKBATAN_CONFIGS_SECONDRY_CONFIG_URL", "postgres://r/d")];
    let error = load_with(&slot("reporting-config"), variables).unwrap_err();
    assert_eq!(error.problems()[0].path, "ekbatan.configs.secondry-config");
}

#[test]
fn behaviour_63_bad_pool_numbers_and_a_low_leak_threshold_are_reported() {
    let database = |keys: &str| {
        format!("ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a', {keys}}}}}}}")
    };
    let at = |key: &str| format!("ekbatan.configs.primary-config.{key}");
    for (keys, key, words) in [
        (
            "maximum-pool-size: 0",
            "maximum-pool-size",
            "= \"0\": expected a whole number from 1 to 4294967295",
        ),
        ("maximum-pool-size: -1", "maximum-pool-size", "= \"-1\": expected a whole number"),
        ("maximum-pool-size: 2.5", "maximum-pool-size", "= \"2.5\": expected a whole number"),
        ("maximum-pool-size: 10.0", "maximum-pool-size", "= \"10.0\": expected a whole number"),
        ("queue-limit: 1e3", "queue-limit", "= \"1000.0\": expected a whole number"),
        ("connection-timeout: 10.0", "connection-timeout", "= \"10.0\": is not a duration"),
        ("maximum-pool-size: many", "maximum-pool-size", "= \"many\": expected a whole number"),
        ("maximum-pool-size: 99999999999999999999999", "maximum-pool-size", "a whole number"),
        ("maximum-pool-size: [1]", "maximum-pool-size", "is a list; expected a whole number"),
        ("maximum-pool-size:", "maximum-pool-size", "has no value"),
        ("maximum-pool-size: 100001", "maximum-pool-size", "is too many; at most 100000"),
        ("lanes: 4294967295", "lanes", "is too many; at most 100000"),
        ("minimum-idle: 11", "minimum-idle", "= \"11\": exceeds maximum-pool-size, which is 10"),
        ("maximum-pool-size: x, minimum-idle: 11", "maximum-pool-size", "a whole number"),
        ("lanes: 0", "lanes", "from 1 to 4294967295"),
        ("fold-limit: 0", "fold-limit", "from 1 to 4294967295"),
        ("queue-limit: 0", "queue-limit", "from 1 to 4294967295"),
        (
            "queue-limit: 5000000000",
            "queue-limit",
            "= \"5000000000\": expected a whole number from 1 to 4294967295",
        ),
        ("leak-detection-threshold: 1999", "leak-detection-threshold", "is too short; at least 2s"),
        ("leak-detection-threshold: -1", "leak-detection-threshold", "is not a duration"),
        ("max-lifetime: 29s", "max-lifetime", "is too short; at least 30s"),
        ("connection-timeout: 0s", "connection-timeout", "must be at least 1ms"),
        ("connection-timeout: soon", "connection-timeout", "is not a duration; write it as"),
        ("connection-timeout: true", "connection-timeout", "is a truth value; expected a duration"),
        (
            "tls-mode: perhaps",
            "tls-mode",
            "expected one of disable, prefer, require, verify-ca, verify-full",
        ),
        ("durability: wall", "durability", "expected one of full, wal; did you mean `wal`?"),
        ("application-name: ' '", "application-name", "is blank"),
        ("username: x", "username", "has no meaning for SQLite"),
        ("username: ''", "username", "is blank"),
        ("tls-mode: require", "tls-mode", "has no meaning for SQLite"),
        ("statement-timeout: 5s", "statement-timeout", "has no meaning for SQLite"),
        ("jdbc-url: 'jdbc:sqlite:a'", "jdbc-url", "is given together with `url`"),
    ] {
        each(&[(&database(keys), &at(key), words)]);
    }
    for keys in [
        "leak-detection-threshold: 2000",
        "leak-detection-threshold: 0",
        "max-lifetime: 0s",
        "idle-timeout: 0",
    ] {
        assert!(load(&database(keys)).is_ok(), "{keys}");
    }
}

#[test]
fn behaviour_49_the_greatest_group_is_255_and_the_greatest_member_63() {
    let shard = |group_number: &str, member_number: &str| {
        format!(
            "ekbatan: {{sharding: {{default-shard: {{group: {group_number}, member: {member_number}}}, groups: [{}]}}}}",
            group(group_number, &member(member_number))
        )
    };
    for (group, member) in [("0", "0"), ("255", "63")] {
        assert!(load(&shard(group, member)).is_ok());
    }
    for (group, member, key, words) in [
        ("256", "0", "group", "expected a whole number from 0 to 255"),
        ("-1", "0", "group", "expected a whole number from 0 to 255"),
        ("0", "64", "members[0].member", "expected a whole number from 0 to 63"),
        ("0", "-1", "members[0].member", "expected a whole number from 0 to 63"),
    ] {
        let found = problems(&shard(group, member));
        assert_eq!(found.len(), 2, "once where it is listed, once as the default: {found:#?}");
        assert!(
            found.iter().any(|p| p.path == format!("ekbatan.sharding.groups[0].{key}")),
            "{found:#?}"
        );
        assert!(found.iter().all(|p| p.message == words), "{found:#?}");
    }
}

#[test]
fn behaviour_61_a_default_shard_that_is_not_a_member_is_reported() {
    each(&[
        (
            &format!(
                "ekbatan: {{sharding: {{default-shard: {{group: 0, member: 5}}, groups: [{}]}}}}",
                group("0", &format!("{}, {}", member("0"), member("1")))
            ),
            "ekbatan.sharding.default-shard",
            "= \"0/5\": is not one of the shards; they are 0/0, 0/1",
        ),
        (
            &format!("ekbatan: {{sharding: {{groups: [{}]}}}}", group("0", &member("0"))),
            "ekbatan.sharding.default-shard",
            "is missing. The shard of all rows that name no shard",
        ),
        (
            &format!(
                "ekbatan: {{sharding: {{default-shard: {{group: 0}}, groups: [{}]}}}}",
                group("0", &member("0"))
            ),
            "ekbatan.sharding.default-shard.member",
            "is missing",
        ),
    ]);
}

#[test]
fn ambiguous_shards_are_reported() {
    each(&[
        (
            &sharding(&format!(
                "groups: [{}, {}]",
                group("0", &member("0")),
                group("0", &member("1"))
            )),
            "ekbatan.sharding.groups[1].group",
            "ekbatan.sharding.groups[0] already has this number",
        ),
        (
            &sharding(&format!(
                "groups: [{}]",
                group("0", &format!("{}, {}", member("0"), member("0").replace("0.db", "1.db")))
            )),
            "ekbatan.sharding.groups[0].members[1].member",
            "members[0] already has this number",
        ),
        (
            &sharding(&format!(
                "groups: [{}]",
                group("0", &format!("{}, {}", member("0"), member("1").replace("1.db", "0.db")))
            )),
            "ekbatan.sharding.groups[0].members[1].configs.primary-config.url",
            "is already the database of ekbatan.sharding.groups[0].members[0].configs.primary-config",
        ),
        (
            "ekbatan: {sharding: {default-shard: {group: 0, member: 0}, groups: [{group: 0, name: a, members: [\
             {member: 0, configs: {primary-config: {url: 'mysql://db/a'}}}, \
             {member: 1, configs: {primary-config: {url: 'mariadb://db:3306/b'}}}]}]}}",
            "ekbatan.sharding.groups[0].members[1].configs.primary-config.eventlog",
            "is already the event log of ekbatan.sharding.groups[0].members[0].configs.primary-config on the same server",
        ),
    ]);
}

#[test]
fn databases_that_parameters_or_users_tell_apart_are_two_shards() {
    let shards = |one: &str, other: &str| {
        let member = |number: &str, database: &str| {
            format!("{{member: {number}, configs: {{primary-config: {{{database}}}}}}}")
        };
        let members = format!("{}, {}", member("0", one), member("1", other));
        sharding(&format!("groups: [{}]", group("0", &members)))
    };
    for (one, other) in [
        ("url: 'postgres://db/?dbname=europe'", "url: 'postgres://db/?dbname=america'"),
        ("url: 'postgres://db/shop?port=5433'", "url: 'postgres://db/shop'"),
        ("url: 'postgres://a@db'", "url: 'postgres://b@db'"),
        ("url: 'postgres://db', username: a", "url: 'postgres://db', username: b"),
        ("url: 'mysql://db/a?socket=/run/1'", "url: 'mysql://db/a?socket=/run/2'"),
    ] {
        assert!(load(&shards(one, other)).is_ok(), "{one}, {other}");
    }
    let url = "ekbatan.sharding.groups[0].members[1].configs.primary-config.url";
    for (one, other) in [
        ("url: 'postgres://db/a?dbname=shop'", "url: 'postgres://x@db/shop'"),
        ("url: 'postgres://db', username: shop", "url: 'postgres://db/shop'"),
    ] {
        each(&[(&shards(one, other), url, "is already the database of")]);
    }
}

#[test]
fn empty_and_blank_values_are_reported() {
    let one = group("0", &member("0"));
    each(&[
        (&sharding("groups: []"), "ekbatan.sharding.groups", "is empty"),
        (&sharding("groups:"), "ekbatan.sharding.groups", "has no value"),
        (&sharding("unknown-shard: error"), "ekbatan.sharding.groups", "is missing"),
        (
            &sharding(&format!("groups: [{}]", group("0", ""))),
            "ekbatan.sharding.groups[0].members",
            "is empty",
        ),
        (
            &sharding(&format!("groups: [{}]", one.replace("name: g", "name: ' '"))),
            "ekbatan.sharding.groups[0].name",
            "is blank",
        ),
        (
            &sharding(&format!("groups: [{}]", one.replace("name: g, ", ""))),
            "ekbatan.sharding.groups[0].name",
            "is missing. A name of the group",
        ),
        (
            &sharding(&format!("groups: [{}]", one.replace("member: 0,", "member: 0, name: '',"))),
            "ekbatan.sharding.groups[0].members[0].name",
            "is blank",
        ),
        (
            &sharding(&format!("groups: [{one}, 3]")),
            "ekbatan.sharding.groups[1]",
            "is a number; expected a mapping",
        ),
        ("ekbatan: {}", "ekbatan", "names no database; give `ekbatan.configs`"),
        ("ekbatan:", "ekbatan", "names no database"),
        ("{}", "ekbatan", "is missing; all settings are below this key"),
        ("server: {port: 1}", "ekbatan", "is missing"),
        ("ekbatan: 3", "ekbatan", "is a number; expected a mapping"),
        (
            "ekbatan: {namespace: '', configs: {primary-config: {url: 'sqlite:a'}}}",
            "ekbatan.namespace",
            "is blank",
        ),
    ]);
}

#[test]
fn invalid_urls_are_reported() {
    let at = "ekbatan.configs.primary-config";
    for (keys, key, words) in [
        ("lanes: 1", "url", "is missing; give `url` or `jdbc-url`"),
        ("url: wallet.db", "url", "write sqlite:wallet.db for a file, postgres://HOST"),
        ("url: 'redis://h'", "url", "is not the address of a known database"),
        ("url: 'jdbc:postgresql://h/d'", "url", "move it to the key `jdbc-url`"),
        ("url: 'postgres://a,b/d'", "url", "names several hosts"),
        ("url: 7", "url", "is a number; expected a text"),
        ("url: ''", "url", "is blank"),
        ("jdbc-url: 'postgres://h/d'", "jdbc-url", "begins with `jdbc:`"),
        ("jdbc-url: 'jdbc:oracle:x'", "jdbc-url", "expected jdbc:postgresql:"),
        (
            "url: 'postgres://a@h/d', username: b",
            "username",
            "= \"b\": the address contains the user \"a\"",
        ),
        (
            "url: 'postgres://a:x@h/d', password: y",
            "password",
            "the address also contains a password",
        ),
        (
            "url: 'postgres://h/d', password: 123",
            "password",
            "is a number; expected a text; put it in quotes",
        ),
        ("url: '${NOWHERE}'", "url", "the environment has no variable `NOWHERE`"),
    ] {
        let yaml = format!("ekbatan: {{configs: {{primary-config: {{{keys}}}}}}}");
        each(&[(&yaml, &format!("{at}.{key}"), words)]);
    }
    // Several hosts in a JDBC URL are reported at the key of the URL.
    let yaml = "ekbatan: {configs: {primary-config: {jdbc-url: 'jdbc:postgresql://a,b/d'}}}";
    each(&[(yaml, "ekbatan.configs.primary-config.jdbc-url", "names several hosts")]);
    for url in ["postgres://a@h/d", "mysql://a@h/d", "mariadb://a@h/d"] {
        assert!(
            load(&format!(
                "ekbatan: {{configs: {{primary-config: {{url: '{url}', username: a}}}}}}"
            ))
            .is_ok()
        );
    }
}

#[test]
fn invalid_replicas_are_reported() {
    let with = |primary: &str, replica: &str| {
        format!(
            "ekbatan: {{configs: {{primary-config: {{url: '{primary}'}}, secondary-config: {{url: '{replica}'}}}}}}"
        )
    };
    each(&[
        (
            &with("sqlite:a", "sqlite:b"),
            "ekbatan.configs.secondary-config",
            "SQLite has no replicas",
        ),
        (
            &with("postgres://h/d", "mysql://h/d"),
            "ekbatan.configs.secondary-config",
            "is MySql, but the primary is Postgres",
        ),
    ]);
    assert!(load(&with("mysql://h/d", "mariadb://h/d")).is_ok());
}

#[test]
fn one_key_in_two_spellings_is_reported() {
    each(&[
        (
            "ekbatan: {configs: {primary-config: {url: 'sqlite:a'}, reports-2-config: {url: 'sqlite:b'}, reports2Config: {url: 'sqlite:c'}}}",
            "ekbatan.configs.reports2-config",
            "is given twice, as `reports-2-config` and as `reports2Config`; keep one",
        ),
        (
            "ekbatan: {configs: {primary-config: {url: 'sqlite:a', fold-limit: 1, foldLimit: 2}}}",
            "ekbatan.configs.primary-config.fold-limit",
            "is given twice, as `fold-limit` and as `foldLimit`; keep one",
        ),
        (
            "ekbatan: {configs: {primary-config: {url: 'sqlite:a'}, primaryConfig: {url: 'sqlite:a'}}}",
            "ekbatan.configs.primary-config",
            "is given twice",
        ),
    ]);
}

#[test]
fn the_short_form_and_the_long_one_exclude_each_other() {
    let long = sharding(&format!("groups: [{}]", group("0", &member("0"))));
    let both =
        long.replacen("{sharding", "{configs: {primary-config: {url: 'sqlite:x'}}, sharding", 1);
    each(&[(&both, "ekbatan.configs", "is given together with `sharding`")]);
}

#[test]
fn keys_of_the_java_framework_without_a_meaning_are_refused() {
    let with = |rest: &str| {
        format!("ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a'}}}}, {rest}}}")
    };
    each(&[
        (
            &with("jobs: {heartbeat-interval: PT10S}"),
            "ekbatan.jobs.heartbeat-interval",
            "a node renews its lease by itself; remove the key, `lease` says when others take over",
        ),
        (
            &with("jobs: {shutdown-max-wait: PT30M}"),
            "ekbatan.jobs.shutdown-max-wait",
            "the time is given to `JobNode::drain`; remove the key",
        ),
        (
            &with("localEventHandler: {fanoutPollDelay: PT1S}"),
            "ekbatan.local-event-handler.fanout-poll-delay",
            "commits deliver their events themselves; remove the key, `ekbatan.events.longest-poll` bounds",
        ),
        (
            &with("local-event-handler: {fanout-batch-size: 200}"),
            "ekbatan.local-event-handler.fanout-batch-size",
            "commits deliver their events themselves; remove the key",
        ),
        (
            &with("local-event-handler: {handling-batch-size: 100}"),
            "ekbatan.local-event-handler.handling-batch-size",
            "events are handled one by one; remove the key, and say how many at a time by `HandlerOptions::concurrency`",
        ),
        (
            &with("spring: {allow-boot-database-auto-configuration: false}"),
            "ekbatan.spring",
            "this framework does not use Spring; remove the section",
        ),
        (
            "ekbatan: {configs: {primaryConfig: {jdbcUrl: 'jdbc:sqlite:a', driverClassName: org.sqlite.JDBC}}}",
            "ekbatan.configs.primary-config.driver-class-name",
            "the scheme of the address selects the driver; remove the key",
        ),
    ]);
}

#[test]
fn all_problems_are_reported_at_once() {
    let yaml = "ekbatan:
  sharding:
    default-shard: {group: 0, member: 9}
    unknown-shard: perhaps
    groups:
      - group: 300
        name: ''
        members:
          - member: 0
            configs:
              primary-config: {url: 'postgres://h/d', maximum-pool-size: 0, idle-timeout: soon}
          - member: 64
            configs: {jobs-config: {lanes: none}}
      - group: 1
        name: second
        members: []
";
    let found: Vec<_> =
        problems(yaml).into_iter().map(|problem| (problem.line, problem.path)).collect();
    let groups = "ekbatan.sharding.groups";
    for (line, path) in [
        (4, "ekbatan.sharding.unknown-shard".to_owned()),
        (6, format!("{groups}[0].group")),
        (7, format!("{groups}[0].name")),
        (11, format!("{groups}[0].members[0].configs.primary-config.maximum-pool-size")),
        (11, format!("{groups}[0].members[0].configs.primary-config.idle-timeout")),
        (12, format!("{groups}[0].members[1].member")),
        (13, format!("{groups}[0].members[1].configs.primary-config")),
        (13, format!("{groups}[0].members[1].configs.jobs-config.url")),
        (13, format!("{groups}[0].members[1].configs.jobs-config.lanes")),
        (16, format!("{groups}[1].members")),
    ] {
        assert!(found.contains(&(Some(line), path.clone())), "{line} {path}\n{found:#?}");
    }
    assert_eq!(found.len(), 10, "{found:#?}");
}
