//! The loader returns a configuration or problems with places for any file and environment.
//!
//! `tests/configuration/random.rs` has random documents with a valid outline.

use std::fs;

use ekbatan::config::{ConfigError, ConfigSource};
use ekbatan::prelude::EkbatanConfig;
use proptest::prelude::*;
use proptest::sample::select;

use crate::draw::check;

/// Checks that each problem has a place and a text.
fn has_places(loaded: Result<EkbatanConfig, ConfigError>) -> Result<(), TestCaseError> {
    let Err(error) = loaded else { return Ok(()) };
    prop_assert!(!error.problems().is_empty());
    for problem in error.problems() {
        let variable = matches!(problem.source, ConfigSource::Environment(_));
        let placed = !problem.path.is_empty() || problem.line.is_some() || variable;
        prop_assert!(placed, "no place: {:?}", problem);
        prop_assert!(!problem.message.is_empty());
    }
    let _ = error.to_string();
    Ok(())
}

fn with(key: &str, value: &str) -> String {
    // A JSON string is also a YAML string.
    let value = serde_json::Value::from(value);
    let url = if key == "url" { "" } else { "url: 'postgres://h/d', " };
    format!("ekbatan: {{configs: {{primary-config: {{{url}{key}: {value}}}}}}}")
}

#[test]
fn the_loader_accepts_or_refuses_any_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ekbatan.yml");
    let pieces = prop::collection::vec(
        select(vec![
            &b"ekbatan:"[..],
            b"\n",
            b"\r\n",
            b"  ",
            b"\t",
            b"configs:",
            b"primary-config: ",
            b"url: ",
            b"- ",
            b"&a ",
            b"*a",
            b"<<: ",
            b"!!binary ",
            b"!x ",
            b"%YAML 9.9\n",
            b"---\n",
            b"...\n",
            b"\xEF\xBB\xBF",
            b"\xFF\xFE",
            b"\0",
            b"\x85",
            b"\xC0\x80",
            b"'",
            b"\"",
            b"\\x",
            b"? ",
            b"{",
            b"}",
            b"[",
            b"]",
            b", ",
            b"|",
            b">-",
            b"#",
            b"${",
            b"1e999",
            b".nan",
            b"0o7",
        ]),
        0..30,
    )
    .prop_map(|pieces| pieces.concat());
    check(1_500, prop_oneof![pieces, prop::collection::vec(any::<u8>(), 0..60)], |bytes| {
        fs::write(&file, bytes).unwrap();
        has_places(EkbatanConfig::loader().file(&file).environment(false).load())
    });
}

#[test]
fn the_loader_accepts_or_refuses_any_environment() {
    let step = select(vec![
        "CONFIGS",
        "PRIMARY_CONFIG",
        "PRIMARY",
        "CONFIG",
        "URL",
        "PASSWORD",
        "MAXIMUM_POOL_SIZE",
        "IDLE_TIMEOUT",
        "SHARDING",
        "GROUPS",
        "MEMBERS",
        "0",
        "1",
        "99999999999999999999",
        "DEFAULT_SHARD",
        "NAMESPACE",
        "NAME",
        "",
        "ä",
    ]);
    let known = prop::collection::vec(step, 0..8)
        .prop_map(|steps| "EKBATAN_".to_owned() + &steps.join("_"));
    let name = prop_oneof![3 => known, 1 => "\\PC{0,20}", 1 => "EKBATAN\\PC{0,12}"];
    let value = prop_oneof!["\\PC{0,20}", any::<String>(), "[\\[\\]{}0-9,:'\" ]{0,12}"];
    let variables = prop::collection::vec((name, value), 0..6);
    check(1_500, (variables, any::<bool>()), |(variables, overrides)| {
        let yaml = with("url", "sqlite:x.db");
        let loader = EkbatanConfig::loader().yaml(yaml).env_from(variables);
        has_places(loader.environment(overrides).load())
    });
}

#[test]
fn the_loader_accepts_or_refuses_any_interpolation() {
    let piece = select(vec![
        "$", "${", "}", ":", "X", "Y", "$$", "${X}", "${X:", "${:", "\\", "ä", " ", "-",
    ]);
    let text = prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat());
    let keys =
        select(vec!["url", "username", "application-name", "maximum-pool-size", "idle-timeout"]);
    check(1_500, (keys, text.clone(), text), |(key, text, value)| {
        let variables = [("X", value.as_str())];
        has_places(EkbatanConfig::loader().yaml(with(key, &text)).env_from(variables).load())
    });
}

#[test]
fn the_loader_accepts_or_refuses_any_time_span() {
    let unit = select(vec!["", "ms", "s", "m", "h", "d", "us", "S", "ä", " s", "PT", "T"]);
    let number = prop_oneof![
        any::<u128>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| number.to_string()),
        "[0-9.eE+-]{0,25}",
    ];
    let span = (prop_oneof![Just(""), Just("PT"), Just("P"), Just("-PT")], number, unit)
        .prop_map(|(before, number, unit)| format!("{before}{number}{unit}"));
    let iso = "P?[0-9]{0,20}[DWMY]?T?[0-9]{0,20}H?[0-9.]{0,22}[MS]?";
    let keys =
        select(vec!["idle-timeout", "max-lifetime", "connection-timeout", "statement-timeout"]);
    check(2_000, (keys, prop_oneof![span, iso, "\\PC{0,12}"]), |(key, text)| {
        has_places(EkbatanConfig::loader().yaml(with(key, &text)).env_from([("A", "")]).load())
    });
}

/// No error shows the password of a URL.
#[test]
fn the_loader_accepts_or_refuses_any_url_without_showing_its_password() {
    let scheme = select(vec![
        "jdbc:postgresql:",
        "jdbc:mysql:",
        "jdbc:mariadb:",
        "jdbc:sqlite:",
        "jdbc:",
        "jdbc:h2:mem:",
        "postgres:",
        "postgresql:",
        "mysql:",
        "mariadb:",
        "sqlite:",
        "redis:",
        "oracle:",
        "",
    ]);
    let junk = || "[a-z0-9./:?&=%,;@\\[\\]#ä -]{0,12}";
    let password = "S3CR3Tpw";
    let place = select(vec![
        "//u:{}@",
        "//u:{}@h:5432/",
        "//:{}@h/d?",
        "//h/d?user=u&password={}&",
        "//h/d?password={}",
        "//h/d;password={};",
        "//h:x/d?PASSWORD={}&",
        "//u%3a:{}@[::1",
    ]);
    check(3_000, (scheme, place, junk(), junk(), any::<bool>()), |(scheme, place, a, b, first)| {
        let place = place.replace("{}", password);
        let url =
            if first { format!("{scheme}{a}{place}{b}") } else { format!("{scheme}{place}{a}{b}") };
        let loaded = EkbatanConfig::loader().yaml(with("url", &url)).env_from([("A", "")]).load();
        let shown = match &loaded {
            Ok(config) => format!("{config:?}"),
            Err(error) => format!("{error}\n{error:?}"),
        };
        prop_assert!(!shown.contains(password), "{} of {}", shown, url);
        has_places(loaded)
    });
}
