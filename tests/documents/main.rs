//! The documents of the repository: their links lead somewhere, the guide has no page that its
//! summary leaves out, the tests that the lists of behaviours and requirements name exist, and so
//! does code that is shown and not compiled.

mod markdown;
mod named_tests;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use markdown::{anchors, links, uncompiled};
use named_tests::{exists, files, named_tests};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every document below a folder of the repository, build products left out.
fn documents(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            if !name.starts_with('.') && name != "target" {
                found.extend(documents(&path));
            }
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// What is wrong with a link of a document, if anything is.
fn mistake(document: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(p, a)| (p, Some(a)));
    let target = match path {
        "" => document.to_owned(),
        path => document.parent().unwrap().join(path),
    };
    if !target.exists() {
        return Some(format!("there is no {path}"));
    }
    let anchor = anchor?;
    let known = anchors(&fs::read_to_string(&target).unwrap());
    (!known.contains(anchor)).then(|| format!("{path} has no heading #{anchor}; it has {known:?}"))
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut mistakes = Vec::new();
    let mut checked = 0;
    for document in documents(root()) {
        for link in links(&fs::read_to_string(&document).unwrap()) {
            checked += 1;
            if let Some(mistake) = mistake(&document, &link) {
                let document = document.strip_prefix(root()).unwrap().display();
                mistakes.push(format!("{document}: ({link}): {mistake}"));
            }
        }
    }
    assert!(mistakes.is_empty(), "\n{}\n", mistakes.join("\n"));
    assert!(checked > 50, "only {checked} links were found");
}

#[test]
fn the_summary_lists_every_page_of_the_guide() {
    let guide = root().join("docs/src");
    let summary = fs::read_to_string(guide.join("SUMMARY.md")).unwrap();
    let listed: BTreeSet<PathBuf> = links(&summary).iter().map(|link| guide.join(link)).collect();
    let left_out: Vec<PathBuf> = documents(&guide)
        .into_iter()
        .filter(|page| !page.ends_with("SUMMARY.md") && !listed.contains(page))
        .collect();
    assert!(left_out.is_empty(), "docs/src/SUMMARY.md leaves out {left_out:?}");
}

#[test]
fn every_page_of_the_guide_with_rust_is_compiled() {
    let compiled = fs::read_to_string(root().join("src/guide.rs")).unwrap();
    let is_left_out = |page: &PathBuf| {
        let name = page.file_name().unwrap().to_string_lossy();
        fs::read_to_string(page).unwrap().contains("\n```rust")
            && !compiled.contains(&format!("/docs/src/{name}\""))
    };
    let pages = documents(&root().join("docs/src"));
    let left_out: Vec<PathBuf> = pages.into_iter().filter(is_left_out).collect();
    assert!(left_out.is_empty(), "src/guide.rs leaves out {left_out:?}");
}

#[test]
fn every_test_that_a_list_names_exists() {
    let folders = ["tests", "models/tests"].map(|folder| root().join(folder));
    let mut missing = Vec::new();
    for (document, at_least) in [("docs/behaviours.md", 100), ("docs/lock-requirements.md", 50)] {
        let text = fs::read_to_string(root().join(document)).unwrap();
        let named = named_tests(&text);
        let is_missing = |name: &&&str| !folders.iter().any(|folder| exists(folder, name));
        missing.extend(named.iter().filter(is_missing).map(|name| format!("{document}: {name}")));
        assert!(named.len() > at_least, "only {} names were found in {document}", named.len());
    }
    assert!(missing.is_empty(), "tests are named that do not exist: {missing:#?}");
}

#[test]
fn the_behaviours_of_events_jobs_calls_sagas_and_relays_are_all_listed() {
    let text = fs::read_to_string(root().join("docs/behaviours.md")).unwrap();
    let (_, events) = text.split_once("\n## Events\n").expect("a section on events");
    let first_cell = |row: &str| row.strip_prefix("| ")?.split(' ').next()?.parse().ok();
    let numbers: Vec<u32> = events.lines().filter_map(first_cell).collect();
    assert_eq!(numbers, (1..=66).collect::<Vec<u32>>());
    assert!(named_tests(events).len() > 60, "most name a test");
}

/// An example is compiled and run, and a page may show a part of it.
#[test]
fn code_that_is_not_compiled_stands_in_an_example() {
    let examples = files(&root().join("examples"));
    let stands = |code: &str| examples.iter().any(|(_, text)| text.contains(code));
    let mut checked = 0;
    for document in documents(root()) {
        for code in uncompiled(&fs::read_to_string(&document).unwrap()) {
            checked += 1;
            let document = document.display();
            assert!(stands(&code), "{document} shows what no example has:\n{code}");
        }
    }
    assert!(checked > 2, "only {checked} blocks were found");
}

#[test]
fn a_link_to_nothing_is_found() {
    let readme = root().join("README.md");
    assert_eq!(mistake(&readme, "docs/src/SUMMARY.md"), None);
    assert_eq!(mistake(&readme, "https://example.com/nothing"), None);
    assert_eq!(mistake(&readme, "docs/nothing.md").unwrap(), "there is no docs/nothing.md");
    assert!(mistake(&readme, "#nothing").unwrap().contains("has no heading #nothing"));
}
