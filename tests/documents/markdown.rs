//! As much of Markdown as links need.

use std::collections::BTreeSet;

/// The targets of all links and pictures, code left out.
pub fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        let mut rest = without_code(line);
        while let Some(start) = rest.find("](") {
            let target = rest.split_off(start + 2);
            let Some(end) = target.find(')') else { break };
            found.push(target[..end].to_owned());
            rest = target[end..].to_owned();
        }
    }
    found
}

/// The names that headings can be linked by.
pub fn anchors(text: &str) -> BTreeSet<String> {
    prose(text)
        .filter(|line| line.starts_with('#'))
        .map(|line| slug(line.trim_start_matches('#').trim()))
        .collect()
}

/// The lines that are not in a fenced block of code.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines().filter(move |line| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        !in_code && !fence
    })
}

/// The blocks of Rust that no test compiles.
pub fn uncompiled(text: &str) -> impl Iterator<Item = String> {
    let blocks = text.split("\n```rust,ignore\n").skip(1);
    blocks.filter_map(|block| block.split_once("```").map(|(code, _)| code.to_owned()))
}

/// A line without what stands between backticks.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect()
}

/// The name that a heading gets in the book and on the pages of code hosts.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn links_and_headings_are_read() {
    let text = "# A `Name`, and more\n[a](b.md) ![c](d.svg) `[no](link)`\n```\n[x](y)\n# z\n```\n";
    assert_eq!(links(text), ["b.md", "d.svg"]);
    assert_eq!(anchors(text), BTreeSet::from(["a-name-and-more".to_owned()]));
}
