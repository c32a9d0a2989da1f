//! The known defects in `tests/museum` fit the sources, so that they can still be made.

use std::fmt::Write as _;
use std::path::Path;

use ekbatan_museum::Defect;

#[test]
fn every_defect_of_the_museum_fits_the_sources() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let defects = Defect::all(repository).unwrap_or_else(|error| panic!("{error}"));
    let mut mistakes = String::new();
    for defect in &defects {
        for mistake in defect.mistakes(repository) {
            _ = writeln!(mistakes, "tests/museum/{}.toml: {mistake}", defect.name);
        }
    }
    assert!(mistakes.is_empty(), "\n{mistakes}");
    assert!(!defects.is_empty(), "the museum is empty");
}

#[test]
fn a_defect_that_does_not_fit_is_found() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(folder.path().join("tests/suite")).unwrap();
    std::fs::write(folder.path().join("tests/suite/main.rs"), "fn it_holds() {}").unwrap();
    std::fs::write(folder.path().join("lib.rs"), "one two two").unwrap();
    let mistakes = |find: &str, suite: &str, test: &str| {
        let text = format!(
            "breaks = 'all'\nfile = 'lib.rs'\nfind = '{find}'\nreplace = ''\n\
             suite = '{suite}'\ntest = '{test}'"
        );
        Defect::parse("room/name", &text).unwrap().mistakes(folder.path())
    };
    let none: [&str; 0] = [];
    assert_eq!(mistakes("one", "suite", "room::it_holds"), none);
    let twice = "lib.rs has the text to replace 2 times, not once";
    assert_eq!(mistakes("two", "suite", "it_holds"), [twice]);
    assert_eq!(mistakes("one", "other", "it_holds"), ["there is no suite `other`"]);
    let no_test = "no test of the suite `suite` is called `it_fails`";
    assert_eq!(mistakes("one", "suite", "it_fails"), [no_test]);
    let unknown = Defect::parse("room/name", "brakes = 'all'").unwrap_err().to_string();
    assert!(unknown.contains("tests/museum/room/name.toml"), "{unknown}");
}
