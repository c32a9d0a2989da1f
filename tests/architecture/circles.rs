//! Files that import each other.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::Import;

/// The groups of files in which each file reaches each other one through imports.
pub fn among(imports: &[Import]) -> Vec<BTreeSet<String>> {
    let mut next: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for import in imports {
        next.entry(&import.from).or_default().insert(&import.to);
    }
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        next.keys().map(|file| (*file, reachable(&next, file))).collect();
    let mut circles = Vec::new();
    let mut seen = BTreeSet::new();
    for (file, reached) in &reach {
        if !reached.contains(file) || seen.contains(file) {
            continue;
        }
        let comes_back = |other: &&str| reach.get(other).is_some_and(|them| them.contains(file));
        let circle: BTreeSet<&str> = reached.iter().copied().filter(comes_back).collect();
        seen.extend(circle.iter().copied());
        circles.push(circle.into_iter().map(str::to_owned).collect());
    }
    circles
}

fn reachable<'f>(next: &BTreeMap<&'f str, BTreeSet<&'f str>>, file: &str) -> BTreeSet<&'f str> {
    let mut reached = BTreeSet::new();
    let mut open: Vec<&str> = next.get(file).into_iter().flatten().copied().collect();
    while let Some(file) = open.pop() {
        if reached.insert(file) {
            open.extend(next.get(file).into_iter().flatten());
        }
    }
    reached
}
