//! The path of the framework in generated code.
//!
//! Users depend on the facade `ekbatan`, and the framework's own crates on
//! `ekbatan-core`. The facade re-exports the modules of the core one to one, so only the
//! root differs.

use proc_macro_crate::{FoundCrate, crate_name};
use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::Ident;

/// `::ekbatan` or `::ekbatan_core`, under the name in the crate's `Cargo.toml`.
pub(crate) fn root() -> TokenStream {
    for package in ["ekbatan", "ekbatan-core"] {
        let name = match crate_name(package) {
            // Both crates contain an `extern crate self` under their own name.
            Ok(FoundCrate::Itself) => package.replace('-', "_"),
            Ok(FoundCrate::Name(name)) => name,
            Err(_) => continue,
        };
        let ident = Ident::new(&name, Span::call_site());
        return quote!(::#ident);
    }
    // Neither is a dependency: the compiler reports that it does not find `ekbatan`.
    quote!(::ekbatan)
}
