//! Which part of the workspace may import which, and what the workspace may depend on.
//!
//! [`rooms::TABLE`] says it for every room, a room being a folder or a file of modules. The tests
//! read the sources of each crate and fail on an import that the table does not allow, on an
//! allowance that no file uses, and on files that import each other in a circle.
//!
//! An import is a path to an item of the same crate, in a `use` or in code. It counts for the file
//! that defines the item, also if another file re-exports it. Re-exports themselves, test code
//! and what macros expand to do not count.

mod circles;
mod dependencies;
mod imports;
mod modules;
mod museum;
mod rooms;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use imports::Import;
use modules::Crate;

/// Every crate of the workspace whose library or program has several files, by its folder.
const CRATES: [&str; 16] = [
    "ekbatan-cli",
    "ekbatan-core",
    "ekbatan-events",
    "ekbatan-jobs",
    "ekbatan-lock",
    "ekbatan-lock-aerospike",
    "ekbatan-lock-etcd",
    "ekbatan-lock-hbase",
    "ekbatan-lock-mongodb",
    "ekbatan-lock-redis",
    "ekbatan-macros",
    "ekbatan-testkit",
    "benches",
    "examples/compare",
    "models",
    "tests/museum",
];

fn load(name: &str) -> Crate {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join("src");
    Crate::read(&source).unwrap_or_else(|error| panic!("{name} cannot be read: {error}"))
}

#[test]
fn every_room_imports_only_what_the_table_allows() {
    let mut mistakes = String::new();
    for list in &rooms::TABLE {
        let name = list.of_crate;
        let source = load(name);
        let mut used = BTreeSet::new();
        for Import { from, to, item } in imports::of(&source) {
            let (Some(importer), Some(imported)) = (list.room_of(&from), list.room_of(&to)) else {
                continue;
            };
            if importer.name == imported.name {
                continue;
            }
            let (importer, imported, allowed) =
                (importer.name, imported.name, importer.may_import(imported.name));
            used.insert((importer, imported));
            if !allowed {
                _ = writeln!(
                    mistakes,
                    "{name}: {from} imports {item} of {to}, but `{importer}` may not import \
                     `{imported}`: move the item down, or pass it in"
                );
            }
        }
        for file in source.files().filter(|file| list.lacks(file)) {
            _ = writeln!(mistakes, "{name}: {file} is in no room: add it to the table");
        }
        for room in list.rooms {
            let (room, imports) = (room.name, room.imports);
            for allowed in imports.iter().filter(|allowed| !used.contains(&(room, **allowed))) {
                _ = writeln!(
                    mistakes,
                    "{name}: `{room}` does not import `{allowed}`: take it out of the table"
                );
            }
        }
    }
    assert!(mistakes.is_empty(), "\n{mistakes}");
}

/// The table itself has no way back up: a room imports only rooms that are listed before it.
#[test]
fn the_table_is_in_order() {
    for list in &rooms::TABLE {
        for (position, room) in list.rooms.iter().enumerate() {
            for allowed in room.imports {
                assert!(
                    list.rooms[..position].iter().any(|lower| lower.name == *allowed),
                    "{} {}: `{}` may import `{allowed}`, which is not listed before it",
                    list.of_crate,
                    list.folder,
                    room.name
                );
            }
        }
    }
}

#[test]
fn the_prelude_has_at_most_25_names() {
    let facade = load("");
    let prelude = &facade.modules[&vec!["prelude".to_owned()]];
    let names: Vec<&String> = prelude.used.keys().filter(|name| *name != "_").collect();
    assert!(names.len() <= 25, "{} names: {names:?}", names.len());
    assert!(names.iter().any(|name| *name == "ActionExecutor"), "{names:?}");
    assert!(prelude.globs.is_empty(), "a glob hides how many names it brings in");
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    let mut found = String::new();
    for name in CRATES {
        let imports = imports::of(&load(name));
        for circle in circles::among(&imports) {
            _ = writeln!(found, "{name}: these files import each other in a circle:");
            for Import { from, to, item } in &imports {
                if circle.contains(from) && circle.contains(to) {
                    _ = writeln!(found, "    {from} -> {to}: {item}");
                }
            }
        }
    }
    assert!(found.is_empty(), "\n{found}");
}

/// The tests above read sources. This one shows that they see what they look for.
#[test]
fn a_forbidden_import_and_a_circle_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let path = folder.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("lib.rs", "mod low; mod high;");
    write("low/mod.rs", "mod a; mod b; pub use a::A; use self::b::B;");
    write("low/a.rs", "use crate::high::High; pub struct A(High, super::B);");
    write("low/b.rs", "pub fn b(_: super::A) {} pub struct B;");
    write(
        "high.rs",
        "use crate::low::A; pub struct High; #[cfg(test)] mod tests { use super::*; }",
    );
    let imports = imports::of(&Crate::read(folder.path()).unwrap());
    let found: Vec<String> =
        imports.iter().map(|import| format!("{} -> {}", import.from, import.to)).collect();
    assert_eq!(
        found,
        [
            "high.rs -> low/a.rs",
            "low/a.rs -> high.rs",
            "low/a.rs -> low/b.rs",
            "low/b.rs -> low/a.rs",
            "low/mod.rs -> low/b.rs",
        ]
    );
    let circles = circles::among(&imports);
    assert_eq!(circles.len(), 1);
    assert_eq!(circles[0].iter().collect::<Vec<_>>(), ["high.rs", "low/a.rs", "low/b.rs"]);
}
