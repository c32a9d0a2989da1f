//! The parameters that MySQL and MariaDB share.
//!
//! Invariants: a server reads no configuration file of this machine.

use std::path::Path;
use std::process::Command;

use crate::server::{ServerEnv, Settings};

/// The only user of a private server, with all privileges.
pub(super) const USER: &str = "root";

/// By default a server is fast and small. A commit still reaches the operating system before it
/// is acknowledged, so it survives a killed server; only a crash of the machine loses it.
const DEFAULTS: [(&str, &str); 7] = [
    ("innodb-flush-log-at-trx-commit", "2"),
    ("sync-binlog", "0"),
    ("innodb-buffer-pool-size", "64M"),
    ("performance-schema", "OFF"),
    ("max-connections", "400"),
    ("character-set-server", "utf8mb4"),
    ("default-time-zone", "+00:00"),
];

/// The parameters with which acknowledged commits survive a power loss.
const DURABLE: [(&str, &str); 3] =
    [("innodb-flush-log-at-trx-commit", "1"), ("sync-binlog", "1"), ("innodb-doublewrite", "ON")];

/// The parameters of a server, and those of its binary log if it keeps one.
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

    /// Enables the binary log, with the parameters `gtid`.
    pub(super) fn binlog(&mut self, gtid: &'static [(&'static str, &'static str)]) {
        self.binlog = Some(gtid);
    }

    /// Adds the arguments of a server whose installation is in `base`.
    pub(super) fn pass_to(&self, command: &mut Command, env: &ServerEnv, base: &Path) {
        let port = env.port().to_string();
        set_folders(command, env, base);
        match self.binlog {
            None => command.arg("--skip-log-bin"),
            Some(gtid) => command
                // Before the settings, because the last value of a parameter wins.
                .arg(format!("--server-id={port}"))
                .arg("--log-bin=binlog")
                .args(gtid.iter().map(|(name, value)| format!("--{name}={value}"))),
        };
        let private = [
            ("bind-address", "127.0.0.1"),
            ("port", port.as_str()),
            // Relative to the data folder, the server's working directory. An absolute path
            // could exceed the system's limit for socket names.
            ("socket", "socket"),
            ("pid-file", "pid"),
        ];
        for (name, value) in self.settings.with(&private) {
            command.arg(format!("--{name}={value}"));
        }
    }
}

/// Adds the arguments that the server and its preparation both need.
pub(super) fn set_folders(command: &mut Command, env: &ServerEnv, base: &Path) {
    // Must be the first argument.
    command.arg("--no-defaults");
    if env.runs_as_root() {
        command.arg("--user=root");
    }
    for (name, value) in [
        ("basedir", base.to_owned()),
        ("plugin-dir", base.join("lib/mysql/plugin")),
        ("datadir", env.data()),
        ("tmpdir", env.folder().to_owned()),
    ] {
        command.arg(format!("--{name}={}", value.display()));
    }
}
