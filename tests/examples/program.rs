//! An example program.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

pub struct Program(Command);

impl Program {
    /// An example of this package. `cargo test` builds examples into the folder beside that
    /// of the tests; `cargo test --test` does not build them.
    pub fn named(name: &str) -> Self {
        let test = std::env::current_exe().unwrap();
        let file = test.parent().unwrap().with_file_name("examples").join(name);
        assert!(
            file.is_file(),
            "the example {name} was not built; run `cargo build --examples` first"
        );
        let mut command = Command::new(file);
        // The program would take it for a name of its configuration that it does not know.
        command.current_dir(env!("CARGO_MANIFEST_DIR")).env_remove("EKBATAN_SOAK");
        Self(command)
    }

    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.0.arg(argument);
        self
    }

    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.0.args(arguments);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.0.env(name, value);
        self
    }

    /// Returns the output. The program must succeed.
    pub fn run(self) -> String {
        self.ends(true)
    }

    /// Returns the output. The program must fail.
    pub fn run_to_failure(self) -> String {
        self.ends(false)
    }

    /// The command, for a test that writes to the running program.
    pub fn into_command(self) -> Command {
        self.0
    }

    fn ends(mut self, well: bool) -> String {
        let ended = self.0.stdin(Stdio::null()).output().unwrap();
        let output = String::from_utf8(ended.stdout).unwrap();
        let complaint = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.success(), well, "{}\n{output}\n{complaint}", ended.status);
        output
    }
    /// Returns the error output. The program must fail.
    pub fn fail(mut self) -> String {
        let ended = self.0.output().unwrap();
        assert!(!ended.status.success(), "{}", String::from_utf8_lossy(&ended.stdout));
        String::from_utf8_lossy(&ended.stderr).into_owned()
    }
}
