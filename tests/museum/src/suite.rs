//! A test suite of the copy: built and run by cargo, each run with a bound.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::defect::WITH;

/// How long the tests of one run may take. A test that does not end by itself is a defect of
/// the test.
const SECONDS_PER_RUN: u32 = 300;

/// Status of `timeout` if it had to end the command.
const TIMED_OUT: i32 = 124;

/// A suite of the copy of the checkout.
pub struct Suite<'m> {
    /// The copy.
    pub copy: &'m Path,
    /// Where cargo builds it.
    pub target: &'m Path,
    /// A folder of `tests`, or `lib:` and the name of a crate. A folder may need a feature.
    pub name: &'m str,
}

/// How a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// Every test passed.
    Passed,
    /// A test failed; all that was printed.
    Failed(String),
    /// The run was ended at its bound.
    TimedOut,
}

impl Suite<'_> {
    /// Builds the suite. The inner error is what the compiler printed.
    ///
    /// # Errors
    ///
    /// If cargo cannot be started.
    pub fn build(&self) -> io::Result<Result<(), String>> {
        let output = self.cargo(Command::new("cargo")).arg("--no-run").output()?;
        if output.status.success() {
            return Ok(Ok(()));
        }
        Ok(Err(String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// The names of all tests.
    ///
    /// # Errors
    ///
    /// If cargo cannot be started.
    pub fn tests(&self) -> io::Result<Vec<String>> {
        let mut command = self.cargo(Command::new("cargo"));
        let output = command.args(["--no-fail-fast", "--", "--list"]).output()?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let names = printed.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(str::to_owned).collect())
    }

    /// Runs the tests of these names.
    ///
    /// # Errors
    ///
    /// If cargo cannot be started.
    pub fn run<'t>(&self, tests: impl IntoIterator<Item = &'t String>) -> io::Result<Ended> {
        let mut timeout = Command::new("timeout");
        timeout.args(["--kill-after", "10", &SECONDS_PER_RUN.to_string(), "cargo"]);
        let mut command = self.cargo(timeout);
        let output = command.args(["--no-fail-fast", "--", "--exact"]).args(tests).output()?;
        let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
        _ = write!(printed, "\n{}", String::from_utf8_lossy(&output.stderr));
        Ok(match output.status.code() {
            Some(0) => Ended::Passed,
            // Without a status, `timeout` had to kill.
            Some(TIMED_OUT) | None => Ended::TimedOut,
            Some(_) => Ended::Failed(printed),
        })
    }

    /// The arguments are those of `scripts/test`, so that the features are the same.
    fn cargo(&self, mut command: Command) -> Command {
        command.args(["test", "--quiet"]);
        match (self.name.strip_prefix("lib:"), self.name.split_once(WITH)) {
            (Some(_), _) => command.args(["--workspace", "--lib"]),
            (None, None) => command.args(["--workspace", "--test", self.name]),
            (None, Some((folder, feature))) => {
                // The suite of brokers is a package of its own.
                let package = if folder == "relay" { "ekbatan-relay-tests" } else { "ekbatan" };
                command.args(["--package", package, "--features", feature, "--test", folder])
            }
        };
        command
            .current_dir(self.copy)
            .env("CARGO_TARGET_DIR", self.target)
            .env("CARGO_INCREMENTAL", "1")
            // Nobody reads a backtrace here, and half of the time to link is saved.
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .stdin(Stdio::null());
        command
    }
}
