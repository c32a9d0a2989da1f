//! The path under which generated code finds the framework.
//!
//! Users depend on the facade `ekbatan`; the framework's own crates on `ekbatan-core`. The
//! facade re-exports the core's modules one to one, so that only the root differs.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::Ident;

/// `::ekbatan` or `::ekbatan_core`, under the name that the crate's `Cargo.toml` gives it.
pub(crate) fn root() -> TokenStream {
    for package in ["ekbatan", "ekbatan-core"] {
        let name = match crate_name(package) {
            // Both crates hold an `extern crate self` under their own name.
            Ok(FoundCrate::Itself) => package.replace('-', "_"),
            Ok(FoundCrate::Name(name)) => name,
            Err(_) => continue,
        };
        let ident = Ident::new(&name, Span::call_site());
        return quote!(::#ident);
    }
    // Neither is a dependency: let the compiler say that it finds no `ekbatan`.
    quote!(::ekbatan)
}
