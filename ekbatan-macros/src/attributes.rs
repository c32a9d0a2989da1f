//! The attributes of the derives: `#[model(..)]`, `#[column(..)]`, `#[event(..)]` and so
//! on.
//!
//! Each attribute is a list of `key = value` or `key`. An unknown key is an error that
//! lists the known keys, so a typo never silently selects a default.

use syn::punctuated::Punctuated;
use syn::{DeriveInput, Expr, ExprLit, Lit, LitInt, LitStr, Meta, Path, Token};

use crate::errors::Errors;

/// The longest name that a column of ekbatan's tables stores, in bytes.
const MAX_NAME_BYTES: usize = 255;

/// The keys of one attribute, as they are written.
pub(crate) struct Keys(Vec<Meta>);

impl Keys {
    /// Reads the keys of every `#[attribute(..)]` in `attributes`.
    pub(crate) fn read(
        attributes: &[syn::Attribute],
        attribute: &str,
        known: &[&str],
        errors: &mut Errors,
    ) -> Self {
        let mut keys: Vec<Meta> = Vec::new();
        for written in attributes.iter().filter(|a| a.path().is_ident(attribute)) {
            let metas =
                match written.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated) {
                    Ok(metas) => metas,
                    Err(error) => {
                        errors.push(error);
                        continue;
                    }
                };
            for meta in metas {
                let path = meta.path();
                if !known.iter().any(|key| path.is_ident(key)) {
                    errors.at(path, unknown(attribute, path, known));
                } else if keys.iter().any(|key| key.path().get_ident() == path.get_ident()) {
                    errors.at(path, format!("`{}` is set twice; remove one", name_of(path)));
                } else {
                    keys.push(meta);
                }
            }
        }
        Self(keys)
    }

    /// The key as it is written, if it is present.
    pub(crate) fn get(&self, key: &str) -> Option<&Meta> {
        self.0.iter().find(|meta| meta.path().is_ident(key))
    }

    /// The value of `key = "text"`, which must not be blank.
    pub(crate) fn text(&self, key: &str, errors: &mut Errors) -> Option<LitStr> {
        let meta = self.get(key)?;
        match literal(meta) {
            Some(Lit::Str(text)) if text.value().trim().is_empty() => {
                errors.at(text, format!("`{key}` is blank; write a name or remove the key"));
                None
            }
            Some(Lit::Str(text)) => Some(text.clone()),
            _ => {
                errors.at(meta, format!("`{key}` must be a string: `{key} = \"..\"`"));
                None
            }
        }
    }

    /// The value of `key = "name"`: a name that a column of ekbatan's tables stores.
    pub(crate) fn name(&self, key: &str, errors: &mut Errors) -> Option<LitStr> {
        let text = self.text(key, errors)?;
        let bytes = text.value().len();
        if bytes > MAX_NAME_BYTES {
            errors.at(
                &text,
                format!(
                    "the name has {bytes} bytes, but its column stores {MAX_NAME_BYTES}; shorten it"
                ),
            );
        }
        Some(text)
    }

    /// The value of `key = 1`.
    pub(crate) fn integer(&self, key: &str, errors: &mut Errors) -> Option<LitInt> {
        let meta = self.get(key)?;
        match literal(meta) {
            Some(Lit::Int(integer)) => Some(integer.clone()),
            _ => {
                errors.at(meta, format!("`{key}` must be a positive integer: `{key} = 2`"));
                None
            }
        }
    }

    /// The value of `key = SomeType`.
    pub(crate) fn ty(&self, key: &str, errors: &mut Errors) -> Option<Path> {
        let meta = self.get(key)?;
        if let Meta::NameValue(pair) = meta
            && let Expr::Path(path) = ungrouped(&pair.value)
            && path.qself.is_none()
        {
            return Some(path.path.clone());
        }
        errors.at(meta, format!("`{key}` must be a type without quotes: `{key} = SomeType`"));
        None
    }

    /// Whether the bare `key` is present.
    pub(crate) fn flag(&self, key: &str, errors: &mut Errors) -> bool {
        let Some(meta) = self.get(key) else { return false };
        if !matches!(meta, Meta::Path(_)) {
            errors.at(meta, format!("`{key}` takes no value; write only `{key}`"));
        }
        true
    }
}

/// Rejects generics, because the generated code names the type without parameters.
pub(crate) fn reject_generics(derive: &str, input: &DeriveInput, errors: &mut Errors) {
    if !input.generics.params.is_empty() {
        errors.at(
            &input.generics,
            format!(
                "`derive({derive})` does not support generics; write `{}` for one concrete type",
                input.ident
            ),
        );
    }
}

fn unknown(attribute: &str, path: &Path, known: &[&str]) -> String {
    let found = name_of(path);
    if (attribute, found.as_str()) == ("entity", "event") {
        return "an entity emits no events; use `#[derive(Model)]` for rows with events".to_owned();
    }
    if known.is_empty() {
        return format!("`#[{attribute}(..)]` has no key `{found}` here; remove it");
    }
    let known: Vec<String> = known.iter().map(|key| format!("`{key}`")).collect();
    format!("`#[{attribute}(..)]` has no key `{found}`; its keys are {}", known.join(", "))
}

fn name_of(path: &Path) -> String {
    let names: Vec<String> = path.segments.iter().map(|s| s.ident.to_string()).collect();
    names.join("::")
}

fn literal(meta: &Meta) -> Option<&Lit> {
    match meta {
        Meta::NameValue(pair) => match ungrouped(&pair.value) {
            Expr::Lit(ExprLit { lit, .. }) => Some(lit),
            _ => None,
        },
        _ => None,
    }
}

/// The expression without the invisible groups around what a macro inserts.
fn ungrouped(mut expr: &Expr) -> &Expr {
    while let Expr::Group(group) = expr {
        expr = &group.expr;
    }
    expr
}
