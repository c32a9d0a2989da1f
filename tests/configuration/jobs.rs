//! `ekbatan.jobs`.

use ekbatan::config::JobsConfig;
use ekbatan::prelude::EkbatanConfig;

use super::{load, load_with, problems};

fn with(rest: &str) -> String {
    format!("ekbatan: {{configs: {{primary-config: {{url: 'sqlite:a'}}}}, {rest}}}")
}

fn jobs(rest: &str) -> JobsConfig {
    load(&with(rest)).unwrap().jobs
}

#[test]
fn without_the_section_nodes_have_the_documented_settings() {
    let expected = jobs("namespace: a");
    assert_eq!(expected, JobsConfig::default());
    assert_eq!(expected, EkbatanConfig::single("sqlite:a").jobs);
    assert_eq!((&*expected.name, expected.concurrency), ("ekbatan", 64));
    assert_eq!((expected.lease.as_secs(), expected.poll.as_secs()), (15, 1));
    assert_eq!(jobs("jobs: {}"), expected);
}

#[test]
fn every_key_is_read_in_every_spelling() {
    let read = jobs("jobs: {name: api, lease: 30s, poll: 100ms, concurrency: 4}");
    assert_eq!((&*read.name, read.concurrency), ("api", 4));
    assert_eq!((read.lease.as_secs(), read.poll.as_millis()), (30, 100));
    // The Java framework's word.
    assert_eq!(jobs("jobs: {pollingInterval: PT10S}").poll.as_secs(), 10);
    let variables = [("EKBATAN_JOBS_POLL", "2s"), ("EKBATAN_JOBS_CONCURRENCY", "7")];
    let read = load_with(&with("jobs: {name: api}"), variables).unwrap().jobs;
    assert_eq!((&*read.name, read.poll.as_secs(), read.concurrency), ("api", 2, 7));
}

#[test]
fn what_cannot_work_is_refused_with_its_place() {
    let cases = [
        ("jobs: {lease: 500ms}", "ekbatan.jobs.lease", "\"500ms\": is too short to be renewed"),
        ("jobs: {lease: 2d}", "ekbatan.jobs.lease", "is too long; at most 1d"),
        ("jobs: {poll: 0s}", "ekbatan.jobs.poll", "is no time; give more than 0s"),
        ("jobs: {poll: 2d}", "ekbatan.jobs.poll", "is too long; at most 1d"),
        ("jobs: {name: ' '}", "ekbatan.jobs.name", "is blank"),
        ("jobs: {concurrency: 0}", "ekbatan.jobs.concurrency", "from 1 to 10000"),
        ("jobs: {pol: 1s}", "ekbatan.jobs.pol", "did you mean `poll`?"),
        (
            "jobs: {poll: 1s, polling-interval: PT10S}",
            "ekbatan.jobs.polling-interval",
            "is given together with `poll`, which means the same; keep `poll`",
        ),
    ];
    for (rest, place, message) in cases {
        let found = problems(&with(rest));
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        let is_right = |problem: &String| problem.contains(place) && problem.contains(message);
        assert!(found.iter().any(is_right), "{rest}: {found:?}");
    }
}

#[test]
fn what_cannot_work_is_refused_in_code_too() {
    let mut jobs = JobsConfig::default();
    (jobs.name, jobs.concurrency) = ("n".repeat(256), 0);
    let error = EkbatanConfig::single("sqlite:a").jobs(jobs).check().unwrap_err().to_string();
    assert!(error.contains("ekbatan.jobs.name: has 256 bytes; use at most 255"), "{error}");
    assert!(error.contains("is not from 1 to 10000"), "{error}");
}
