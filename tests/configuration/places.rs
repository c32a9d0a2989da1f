//! The places of problems.

use std::io::Write;

use ekbatan::config::ConfigSource;
use ekbatan::prelude::{Databases, EkbatanConfig};

#[test]
fn a_problem_names_its_file_and_line() {
    let mut file = tempfile::NamedTempFile::with_suffix(".yml").unwrap();
    write!(
        file,
        "ekbatan:\n  configs:\n    primary-config:\n      url: sqlite:a.db\n      lanes: 0\n"
    )
    .unwrap();
    let error =
        EkbatanConfig::loader().file(file.path()).env_from([("", ""); 0]).load().unwrap_err();
    let problem = &error.problems()[0];
    assert_eq!(problem.source, ConfigSource::File(file.path().to_owned()));
    assert_eq!((problem.line, problem.value.as_deref()), (Some(5), Some("0")));
    assert_eq!(
        error.to_string(),
        format!(
            "the configuration has a problem:\n  ekbatan.configs.primary-config.lanes = \"0\": \
             expected a whole number from 1 to 4294967295 ({}, line 5)",
            file.path().display()
        )
    );
}

/// A value may begin on the line below its key.
#[test]
fn a_problem_is_at_the_line_of_its_key() {
    for (yaml, path, line) in [
        (
            "ekbatan:\n  namespace: a b\n  config:\n    primary-config: {url: 'sqlite:a'}\n",
            "ekbatan.config",
            3,
        ),
        ("a: 1\nekbatan:\n  namespace: a\n", "ekbatan", 2),
        (
            "ekbatan:\n  configs:\n    primary-config:\n      lanes: 1\n",
            "ekbatan.configs.primary-config.url",
            3,
        ),
        (
            "ekbatan:\n  colours:\n    - red\n  configs: {primary-config: {url: 'sqlite:a'}}\n",
            "ekbatan.colours",
            2,
        ),
    ] {
        let error = EkbatanConfig::loader().yaml(yaml).env_from([("", ""); 0]).load().unwrap_err();
        let problem = error.problems().iter().find(|problem| problem.path == path);
        assert_eq!(problem.unwrap_or_else(|| panic!("{error}")).line, Some(line), "{error}");
    }
}

#[test]
fn a_time_is_shown_as_its_source_has_it() {
    let error = EkbatanConfig::loader()
        .yaml("ekbatan: {configs: {primary-config: {url: 'sqlite:a', max-lifetime: PT5S}}, events: {retention: {events: 5m, keys: '${AGE}'}}}")
        .env_from([("AGE", "PT6M")])
        .load()
        .unwrap_err()
        .to_string();
    assert!(error.contains("ekbatan.events.retention.events = \"5m\": is too short"), "{error}");
    assert!(error.contains("max-lifetime = \"PT5S\": is too short"), "{error}");
    // A variable is not shown by its name, but as what it stands for.
    assert!(error.contains("ekbatan.events.retention.keys = \"360s\": is too short"), "{error}");
}

#[test]
fn a_namespace_that_no_executor_takes_is_a_problem() {
    let long = "n".repeat(256);
    for (namespace, why) in [("a b", "is not a dotted identifier"), (&long, "has 256 characters")] {
        let yaml = format!(
            "ekbatan:\n  namespace: {namespace}\n  configs: {{primary-config: {{url: 'sqlite:a'}}}}\n"
        );
        let error = EkbatanConfig::loader().yaml(yaml).env_from([("", ""); 0]).load().unwrap_err();
        let [problem] = error.problems() else { panic!("{error}") };
        assert_eq!((&*problem.path, problem.line), ("ekbatan.namespace", Some(2)));
        assert!(problem.message.starts_with(why), "{error}");
    }
}

/// Nobody has written a key.
#[tokio::test]
async fn a_wrong_address_is_named_without_a_key() {
    for (address, text) in [
        (
            "orders.db",
            "the address \"orders.db\" is not the address of a known database; write sqlite:orders.db for a file, postgres://",
        ),
        (
            "postgress://app:s3cret@h/d",
            "the address \"postgress://app:***@h/d\" is not the address",
        ),
        ("", "the address is blank; write, for example, sqlite:FILE"),
    ] {
        let error = Databases::open(address).await.err().unwrap().to_string();
        assert!(error.starts_with(text), "{error}");
        assert!(!error.contains("primary-config") && !error.contains("s3cret"), "{error}");
        assert_eq!(
            error.ends_with("; did you mean `postgres`?"),
            address.starts_with("post"),
            "{error}"
        );
    }
}

#[test]
fn a_missing_file_is_named() {
    let error = EkbatanConfig::load("no/such/file.yml").unwrap_err().to_string();
    assert!(
        error.contains("the file cannot be read: ") && error.contains("(no/such/file.yml)"),
        "{error}"
    );
}

#[test]
fn invalid_yaml_is_reported_with_its_line_for_every_file() {
    let error =
        EkbatanConfig::loader().yaml("a: [").yaml("ok: 1").yaml("b: 1\nb: 2").load().unwrap_err();
    let lines: Vec<_> = error.problems().iter().map(|problem| problem.line).collect();
    assert_eq!(lines.len(), 2, "{error}");
    assert!(lines.iter().all(Option::is_some), "{error}");
    assert!(error.to_string().contains("the text is not YAML: "), "{error}");
}

#[test]
fn a_variable_of_the_environment_and_code_are_named_as_sources() {
    let error = EkbatanConfig::loader()
        .yaml("ekbatan:\n  configs:\n    primary-config:\n      url: sqlite:a.db\n")
        .env_from([("EKBATAN_CONFIGS_PRIMARY_CONFIG_LANES", "none")])
        .set("ekbatan.configs.primary-config.fold-limit", -1)
        .set("ekbatan.configs.primary-config.fold-limits", 1)
        .load()
        .unwrap_err();
    let text = error.to_string();
    for line in [
        "ekbatan.configs.primary-config.lanes = \"none\": expected a whole number from 1 to 4294967295 (environment, EKBATAN_CONFIGS_PRIMARY_CONFIG_LANES)",
        "ekbatan.configs.primary-config.fold-limit = \"-1\": expected a whole number from 1 to 4294967295 (code)",
        "ekbatan.configs.primary-config.fold-limits: there is no key `fold-limits`; did you mean `fold-limit`? (code)",
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[cfg(unix)]
#[test]
fn a_value_from_code_that_does_not_serialize_is_reported_with_the_cause() {
    use std::os::unix::ffi::OsStrExt as _;

    let folder = std::path::Path::new(std::ffi::OsStr::from_bytes(b"\xff"));
    let error = EkbatanConfig::loader()
        .yaml("ekbatan: {configs: {primary-config: {url: 'sqlite:a.db'}}}")
        .env_from([("", ""); 0])
        .set("ekbatan.configs.primary-config.tls-root-cert", folder)
        .load()
        .unwrap_err()
        .to_string();
    assert!(error.contains("the value does not serialize: path contains invalid UTF-8"), "{error}");
}

/// The environment of this process cannot be changed, so another one loads the text.
#[cfg(unix)]
#[test]
fn a_variable_that_is_no_text_is_a_problem_where_it_is_used() {
    use std::os::unix::ffi::OsStrExt as _;
    use std::process::Command;

    const TEXT: &str = "EKBATAN_TEST_TEXT_TO_LOAD";
    let url = "ekbatan: {configs: {primary-config: {url: 'postgres://h/d'";
    if let Ok(text) = std::env::var(TEXT) {
        return match EkbatanConfig::loader().yaml(text).environment(false).load() {
            Ok(_) => println!("loaded"),
            Err(error) => println!("{error}"),
        };
    }
    let used = "ekbatan.configs.primary-config.password: the variable `LATIN` of the environment is not a text in UTF-8; set it to one";
    for (text, printed) in [
        (format!("{url}, password: '${{LATIN}}'}}}}}}"), used),
        (format!("{url}, password: '${{LATIN:}}'}}}}}}"), used),
        (format!("{url}}}}}}}"), "loaded"),
    ] {
        let out = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "places::a_variable_that_is_no_text_is_a_problem_where_it_is_used"])
            .arg("--nocapture")
            .env(TEXT, &text)
            .env("LATIN", std::ffi::OsStr::from_bytes(b"p\xe4ss"))
            .output()
            .unwrap();
        let out = String::from_utf8(out.stdout).unwrap();
        assert!(out.contains(printed), "{text}\n{out}");
    }
}

#[test]
fn a_variable_that_names_no_key_is_a_problem() {
    let error = EkbatanConfig::loader()
        .yaml("ekbatan: {configs: {primary-config: {url: 'sqlite:a.db'}}}")
        .env_from([
            ("EKBATAN_CONFIGS_PRIMARY_CONFIG_PASSWROD", "s3cret"),
            ("EKBATAN_TEST_POSTGRES_URL", "postgres://h/d"),
            ("EKBATAN_REDIS_BIN", "/usr/bin"),
            ("EKBATAN_ETCD_BIN", "/usr/bin"),
            ("EKBATAN_HBASE_BIN", "/opt/hbase/lib"),
            ("EKBATAN_FERRETDB_BIN", "/usr/bin"),
            ("EKBATAN_AEROSPIKE_BIN", "/usr/bin"),
            ("EKBATAN_NATS_BIN", "/usr/bin"),
            ("EKBATAN_RABBITMQ_BIN", "/usr/bin"),
            ("EKBATAN_KAFKA_BIN", "/opt/kafka/libs"),
            ("OTHER", "1"),
        ])
        .load()
        .unwrap_err();
    assert_eq!(error.problems().len(), 1, "{error}");
    let problem = &error.problems()[0];
    assert_eq!(problem.path, "EKBATAN_CONFIGS_PRIMARY_CONFIG_PASSWROD");
    assert!(problem.message.contains("did you mean PASSWORD?"), "{error}");
    assert!(!error.to_string().contains("s3cret"));
}
