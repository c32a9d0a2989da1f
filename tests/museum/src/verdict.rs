//! What became of a defect.

use std::fmt;

/// Whether the tests catch a defect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The test failed; the first thing that it said.
    Caught(String),
    /// The test passed: it does not show what it is for.
    Survived,
    /// The test did not end by itself.
    Hung,
    /// The edit leaves code that does not compile.
    DoesNotBuild,
    /// The entry does not fit the sources.
    DoesNotFit(String),
    /// The test fails without the edit, too; the first thing that it said.
    FailsAnyway(String),
}

impl Verdict {
    /// Whether the museum may pass.
    pub fn is_good(&self) -> bool {
        matches!(self, Self::Caught(_))
    }

    /// What the test or the check of the entry said.
    pub fn detail(&self) -> &str {
        match self {
            Self::Caught(said) | Self::FailsAnyway(said) | Self::DoesNotFit(said) => said,
            Self::Survived => "the test passes",
            Self::Hung => "the test does not end by itself",
            Self::DoesNotBuild => "the compiler refuses the edit",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Caught(_) => "caught",
            Self::Survived => "SURVIVED",
            Self::Hung => "HUNG",
            Self::DoesNotBuild => "DOES NOT BUILD",
            Self::DoesNotFit(_) => "DOES NOT FIT",
            Self::FailsAnyway(_) => "FAILS ANYWAY",
        })
    }
}

/// The message of the first panic in what tests printed.
pub fn first_panic(printed: &str) -> String {
    let mut lines = printed.lines().skip_while(|line| !line.contains("panicked at "));
    lines.next();
    let message = lines.next().unwrap_or("it ended without a message").trim();
    message.chars().take(100).collect()
}
