//! A crate as a tree of modules, read from its sources.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use syn::{Attribute, Expr, ExprLit, Item, ItemUse, Lit, Meta, UseTree};

/// Where a module stands: the names from the crate's root to it.
pub type ModulePath = Vec<String>;

/// A path as it is written, from its first segment on.
pub type Written = Vec<String>;

pub struct Crate {
    pub modules: BTreeMap<ModulePath, Module>,
}

#[derive(Default)]
pub struct Module {
    /// The file that holds it, relative to the folder of sources.
    pub file: String,
    /// The items outside of tests.
    pub items: Vec<Item>,
    /// The names of its types, functions, traits and other items but modules.
    pub defined: Vec<String>,
    /// The names that `use` brings in, with the path of each.
    pub used: BTreeMap<String, Written>,
    /// The paths behind `use ..::*`.
    pub globs: Vec<Written>,
}

impl Crate {
    /// Reads the crate whose `lib.rs` or `main.rs` stands in this folder.
    pub fn read(source: &Path) -> io::Result<Self> {
        let root = ["lib.rs", "main.rs"].into_iter().find(|name| source.join(name).is_file());
        let root = root.ok_or_else(|| io::Error::other("neither lib.rs nor main.rs"))?;
        let mut modules = BTreeMap::new();
        read_file(source, Path::new(root), Path::new(""), &Vec::new(), &mut modules)?;
        Ok(Self { modules })
    }

    /// Every file, once.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        let mut files: Vec<&str> =
            self.modules.values().map(|module| module.file.as_str()).collect();
        files.sort_unstable();
        files.dedup();
        files.into_iter()
    }
}

/// Reads one file as the module at `path`. The files of its children are in `folder`.
fn read_file(
    source: &Path,
    file: &Path,
    folder: &Path,
    path: &ModulePath,
    modules: &mut BTreeMap<ModulePath, Module>,
) -> io::Result<()> {
    let text = fs::read_to_string(source.join(file))?;
    let parsed = syn::parse_file(&text)
        .map_err(|error| io::Error::other(format!("{}: {error}", file.display())))?;
    read_items(source, file, folder, path, parsed.items, modules)
}

fn read_items(
    source: &Path,
    file: &Path,
    folder: &Path,
    path: &ModulePath,
    items: Vec<Item>,
    modules: &mut BTreeMap<ModulePath, Module>,
) -> io::Result<()> {
    let mut module = Module { file: file.display().to_string(), ..Module::default() };
    for item in items {
        if is_for_tests(&item) {
            continue;
        }
        match item {
            Item::Mod(child) => {
                let name = child.ident.to_string();
                let mut child_path = path.clone();
                child_path.push(name.clone());
                let child_folder = folder.join(&name);
                match child.content {
                    Some((_, items)) => {
                        read_items(source, file, &child_folder, &child_path, items, modules)?;
                    }
                    None => {
                        let file = match stated_path(&child.attrs) {
                            Some(stated) => file.with_file_name(stated),
                            None => file_of(source, folder, &name)?,
                        };
                        read_file(source, &file, &child_folder, &child_path, modules)?;
                    }
                }
            }
            item => {
                if let Item::Use(item) = &item {
                    module.bring_in(item);
                }
                module.defined.extend(name_of(&item));
                module.items.push(item);
            }
        }
    }
    modules.insert(path.clone(), module);
    Ok(())
}

/// The file of a module that is declared as `mod name;` in a module whose folder this is.
fn file_of(source: &Path, folder: &Path, name: &str) -> io::Result<PathBuf> {
    let places = [folder.join(format!("{name}.rs")), folder.join(name).join("mod.rs")];
    let found = places.iter().find(|place| source.join(place).is_file());
    found.cloned().ok_or_else(|| io::Error::other(format!("no file for the module {name}")))
}

/// The file that `#[path = ".."]` names.
fn stated_path(attributes: &[Attribute]) -> Option<String> {
    let stated = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    let Meta::NameValue(stated) = &stated.meta else { return None };
    let Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) = &stated.value else { return None };
    Some(text.value())
}

impl Module {
    fn bring_in(&mut self, item: &ItemUse) {
        let mut leaves = Vec::new();
        flatten(&item.tree, Vec::new(), &mut leaves);
        for (path, name) in leaves {
            match name {
                Some(name) => drop(self.used.insert(name, path)),
                None => self.globs.push(path),
            }
        }
    }
}

/// The paths of a `use`, each with the name that it brings in, or without one for `*`.
pub fn flatten(tree: &UseTree, mut before: Written, leaves: &mut Vec<(Written, Option<String>)>) {
    match tree {
        UseTree::Path(path) => {
            before.push(path.ident.to_string());
            flatten(&path.tree, before, leaves);
        }
        UseTree::Name(name) => {
            let mut brought = name.ident.to_string();
            // `use path::{self}` brings in the last name of the path.
            if brought == "self" {
                brought = before.last().cloned().unwrap_or(brought);
            } else {
                before.push(brought.clone());
            }
            leaves.push((before, Some(brought)));
        }
        UseTree::Rename(rename) => {
            before.push(rename.ident.to_string());
            leaves.push((before, Some(rename.rename.to_string())));
        }
        UseTree::Glob(_) => leaves.push((before, None)),
        UseTree::Group(group) => {
            for tree in &group.items {
                flatten(tree, before.clone(), leaves);
            }
        }
    }
}

fn is_for_tests(item: &Item) -> bool {
    let attributes = match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string();
        list.path.is_ident("cfg")
            && !condition.contains("not (test")
            && condition
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .any(|word| word == "test")
    })
}

fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}
