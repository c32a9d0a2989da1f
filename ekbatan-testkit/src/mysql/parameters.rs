//! The parameters that MySQL and MariaDB have in common.
//!
//! What always holds: no configuration file of this machine plays a part.

use std::path::Path;
use std::process::Command;

use crate::server::{Place, Settings};

/// The only user of a private server, who may do everything.
pub(super) const USER: &str = "root";

/// Unless asked otherwise, a server is quick and small. Commits still reach the
/// operating system before they are acknowledged, so they survive a killed
/// server; only a crash of the whole machine would lose them.
pub(super) const DEFAULTS: [(&str, &str); 7] = [
    ("innodb-flush-log-at-trx-commit", "2"),
    ("sync-binlog", "0"),
    ("innodb-buffer-pool-size", "64M"),
    ("performance-schema", "OFF"),
    ("max-connections", "400"),
    ("character-set-server", "utf8mb4"),
    ("default-time-zone", "+00:00"),
];

/// What a server needs to keep its word when the machine loses power.
pub(super) const DURABLE: [(&str, &str); 3] =
    [("innodb-flush-log-at-trx-commit", "1"), ("sync-binlog", "1"), ("innodb-doublewrite", "ON")];

/// The parameters of a server, and whether it keeps a binary log.
#[derive(Debug, Clone)]
pub(super) struct Parameters {
    settings: Settings,
    binlog: Option<&'static [(&'static str, &'static str)]>,
}

impl Parameters {
    pub(super) fn new(more: &[(&str, &str)]) -> Self {
        let mut settings = Settings::new(&DEFAULTS);
        settings.extend(more);
        Self { settings, binlog: None }
    }

    pub(super) fn push(&mut self, name: String, value: String) {
        self.settings.push(name, value);
    }

    pub(super) fn durable(&mut self) {
        self.settings.extend(&DURABLE);
    }

    /// Has the server keep a binary log, with `identifiers` to follow it by.
    pub(super) fn binlog(&mut self, identifiers: &'static [(&'static str, &'static str)]) {
        self.binlog = Some(identifiers);
    }

    /// The arguments of a server in `place` whose programs are below `base`.
    pub(super) fn pass_to(&self, command: &mut Command, place: &Place, base: &Path) {
        let port = place.port().to_string();
        place_at(command, place, base);
        match self.binlog {
            None => command.arg("--skip-log-bin"),
            Some(identifiers) => command
                // Before what is set, which wins.
                .arg(format!("--server-id={port}"))
                .arg("--log-bin=binlog")
                .args(identifiers.iter().map(|(name, value)| format!("--{name}={value}"))),
        };
        let private = [
            ("bind-address", "127.0.0.1"),
            ("port", port.as_str()),
            // In the data folder, where the server goes first. With its whole path
            // it could be longer than what the system allows.
            ("socket", "socket"),
            ("pid-file", "pid"),
        ];
        for (name, value) in self.settings.with(&private) {
            command.arg(format!("--{name}={value}"));
        }
    }
}

/// The arguments without which neither a server nor its preparation runs.
pub(super) fn place_at(command: &mut Command, place: &Place, base: &Path) {
    // Has to be the first.
    command.arg("--no-defaults");
    if place.is_roots() {
        command.arg("--user=root");
    }
    for (name, value) in [
        ("basedir", base.to_owned()),
        ("plugin-dir", base.join("lib/mysql/plugin")),
        ("datadir", place.data()),
        ("tmpdir", place.folder().to_owned()),
    ] {
        command.arg(format!("--{name}={}", value.display()));
    }
}
