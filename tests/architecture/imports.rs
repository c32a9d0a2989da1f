//! The imports between the files of a crate.

use std::collections::BTreeSet;

use syn::visit::{self, Visit};
use syn::{Item, Visibility};

use crate::modules::{Crate, Module, ModulePath, Written, flatten};

/// A file names an item that another file of the same crate defines.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Import {
    pub from: String,
    pub to: String,
    pub item: String,
}

/// Every import, sorted, each item once for a pair of files.
pub fn of(source: &Crate) -> Vec<Import> {
    let mut imports = BTreeSet::new();
    for (path, module) in &source.modules {
        for written in paths_in(module) {
            let Some(to) = source.file_of(path, &written) else { continue };
            if to != module.file {
                let item = written.last().cloned().unwrap_or_default();
                imports.insert(Import { from: module.file.clone(), to, item });
            }
        }
    }
    let mut seen = BTreeSet::new();
    imports.into_iter().filter(|import| seen.insert(import.clone())).collect()
}

/// The paths that a module writes down, re-exports left out.
fn paths_in(module: &Module) -> Vec<Written> {
    let mut collected = Paths::default();
    for item in &module.items {
        match item {
            Item::Use(item) if matches!(item.vis, Visibility::Inherited) => {
                let mut leaves = Vec::new();
                flatten(&item.tree, Vec::new(), &mut leaves);
                collected.paths.extend(leaves.into_iter().map(|(path, _)| path));
            }
            Item::Use(_) => {}
            item => collected.visit_item(item),
        }
    }
    collected.paths
}

#[derive(Default)]
struct Paths {
    paths: Vec<Written>,
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        // A single name is a local one, or a `use` has brought it in.
        if path.leading_colon.is_none() && path.segments.len() > 1 {
            self.paths.push(path.segments.iter().map(|part| part.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let mut leaves = Vec::new();
        flatten(&item.tree, Vec::new(), &mut leaves);
        self.paths.extend(leaves.into_iter().map(|(path, _)| path));
    }
}

impl Crate {
    /// The file that defines what a path in the module `from` names, if it is one of this crate.
    fn file_of(&self, from: &ModulePath, written: &Written) -> Option<String> {
        self.resolve(from, written, &mut BTreeSet::new())
    }

    fn resolve(
        &self,
        from: &ModulePath,
        written: &Written,
        visited: &mut BTreeSet<(ModulePath, Written)>,
    ) -> Option<String> {
        if !visited.insert((from.clone(), written.clone())) {
            return None;
        }
        let mut at = from.clone();
        let mut own = false;
        for (position, part) in written.iter().enumerate() {
            let child = || {
                let mut child = at.clone();
                child.push(part.clone());
                self.modules.contains_key(&child).then_some(child)
            };
            match part.as_str() {
                "crate" => at = ModulePath::new(),
                "self" => {}
                "super" => drop(at.pop()),
                _ => match child() {
                    Some(child) => at = child,
                    None if position == 0 => return None,
                    None => return self.definition(&at, &written[position..], visited),
                },
            }
            own = true;
        }
        // The path of a module: what it holds is named by further paths.
        own.then(|| self.modules.get(&at).map(|module| module.file.clone())).flatten()
    }

    /// The file that defines the first of these names, as seen in a module.
    fn definition(
        &self,
        at: &ModulePath,
        names: &[String],
        visited: &mut BTreeSet<(ModulePath, Written)>,
    ) -> Option<String> {
        let module = self.modules.get(at)?;
        let name = names.first()?;
        if module.defined.contains(name) {
            return Some(module.file.clone());
        }
        if let Some(path) = module.used.get(name) {
            let further: Written = path.iter().chain(&names[1..]).cloned().collect();
            return self.resolve(at, &further, visited).or_else(|| self.resolve(at, path, visited));
        }
        module.globs.iter().find_map(|glob| {
            let further: Written = glob.iter().chain(names).cloned().collect();
            self.resolve(at, &further, visited)
        })
    }
}
