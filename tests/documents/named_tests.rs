//! The tests that a document names, as `module::test`.

use std::fs;
use std::path::Path;

/// The texts between backticks that are paths of tests. A `*` at the end of one stands for the
/// rest of a name.
pub fn named_tests(text: &str) -> Vec<&str> {
    let is_path = |text: &&str| {
        text.contains("::")
            && !text.ends_with(':')
            && text
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "_:*".contains(c))
    };
    text.split('`').skip(1).step_by(2).filter(is_path).collect()
}

/// Whether a file below `folder` is the module of the path, and has a function of its name.
pub fn exists(folder: &Path, path: &str) -> bool {
    let Some((module, test)) = path.rsplit_once("::") else { return false };
    let file = format!("{}.rs", module.replace("::", "/"));
    let found = match test.strip_suffix('*') {
        Some(beginning) => format!("fn {beginning}"),
        None => format!("fn {test}("),
    };
    files(folder).iter().any(|(path, text)| path.ends_with(&file) && text.contains(&found))
}

/// The sources below a folder, with their texts.
pub fn files(folder: &Path) -> Vec<(std::path::PathBuf, String)> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths
        .flat_map(|path| match path.extension() {
            _ if path.is_dir() => files(&path),
            Some(extension) if extension == "rs" => {
                let text = fs::read_to_string(&path).unwrap();
                vec![(path, text)]
            }
            _ => Vec::new(),
        })
        .collect()
}

#[test]
fn names_of_tests_are_read() {
    let text = "| 1 | A | `a::b_c`, `tests/x`, `d::e::f_*`; `Id<A>` and `executor.outcome` |";
    assert_eq!(named_tests(text), ["a::b_c", "d::e::f_*"]);
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    assert!(exists(&tests, "named_tests::names_of_tests_are_read"));
    assert!(exists(&tests, "named_tests::names_of_*"));
    assert!(!exists(&tests, "named_tests::names_of"));
}
