//! What the workspace may depend on: `deny.toml` says which licences are acceptable, and everything comes
//! from the registry of crates.
//!
//! Before a release, `cargo deny` checks the same, and the advisories, which change without a change here.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;
use spdx::{Expression, ParseMode};

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for a package of the workspace.
    source: Option<String>,
    /// Empty for a package that is not published.
    publish: Option<Vec<String>>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    req: String,
    /// `None` for a dependency of the package itself, else `dev` or `build`.
    kind: Option<String>,
    path: Option<String>,
}

#[derive(Deserialize)]
struct Policy {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

/// Packages whose manifest names no licence, and the licence in their file `LICENSE`.
const UNNAMED: [(&str, &str, &str); 1] = [("apalis-postgres", "1.0.0", "MIT")];

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

impl Package {
    /// Why the workspace may not depend on it.
    fn objections(&self, policy: &Policy) -> Vec<String> {
        let mut objections = Vec::new();
        let is_this = |(name, version, _): &&(&str, &str, &str)| {
            *name == self.name && *version == self.version
        };
        let unnamed = || UNNAMED.iter().find(is_this).map(|(_, _, license)| *license);
        match self.license.as_deref().or_else(unnamed) {
            None => objections.push("it names no licence".to_owned()),
            Some(license) if !is_acceptable(license, policy) => {
                objections.push(format!("its licence is {license}"));
            }
            Some(_) => {}
        }
        match &self.source {
            Some(source) if source != REGISTRY => objections.push(format!("it is from {source}")),
            Some(_) => {}
            // One of ours.
            None => objections.extend(
                self.dependencies
                    .iter()
                    .filter(|dependency| {
                        dependency.req == "*" && !self.may_name_only_a_path(dependency)
                    })
                    .map(|dependency| format!("it takes any version of {}", dependency.name)),
            ),
        }
        objections
    }

    /// Cargo refuses to publish a package with such a dependency, unless only its tests need it.
    fn may_name_only_a_path(&self, dependency: &Dependency) -> bool {
        let is_published = self.publish.is_none();
        dependency.path.is_some() && (!is_published || dependency.kind.as_deref() == Some("dev"))
    }
}

fn is_acceptable(license: &str, policy: &Policy) -> bool {
    Expression::parse_mode(license, ParseMode::LAX)
        .is_ok_and(|choice| choice.evaluate(|one| policy.licenses.allow.contains(&one.to_string())))
}

fn policy() -> Policy {
    let text = std::fs::read_to_string(root().join("deny.toml")).unwrap();
    toml::from_str(&text).unwrap()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn everything_has_an_acceptable_licence_and_comes_from_the_registry() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let asked = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--locked", "--all-features"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    let metadata: Metadata = serde_json::from_slice(&asked.stdout).unwrap();
    assert!(metadata.packages.len() > 100, "{} packages", metadata.packages.len());
    let policy = policy();
    let objections: Vec<String> = metadata
        .packages
        .iter()
        .flat_map(|package| {
            let Package { name, version, .. } = package;
            let objections = package.objections(&policy).into_iter();
            objections.map(move |objection| format!("{name} {version}: {objection}"))
        })
        .collect();
    assert!(objections.is_empty(), "{}", objections.join("\n"));
}

#[test]
fn what_is_not_acceptable_is_found() {
    let policy = policy();
    let package = Package {
        name: "borrowed".to_owned(),
        version: "1.0.0".to_owned(),
        license: Some("GPL-3.0-only AND MIT".to_owned()),
        source: Some("git+https://example.org/borrowed".to_owned()),
        publish: None,
        dependencies: Vec::new(),
    };
    assert_eq!(
        package.objections(&policy),
        ["its licence is GPL-3.0-only AND MIT", "it is from git+https://example.org/borrowed"]
    );
    for acceptable in ["MIT OR GPL-3.0-only", "MIT/Apache-2.0", "Apache-2.0 WITH LLVM-exception"] {
        assert!(is_acceptable(acceptable, &policy), "{acceptable}");
    }
    let any = |name: &str, kind: Option<&str>, path: Option<&str>| Dependency {
        name: name.to_owned(),
        req: "*".to_owned(),
        kind: kind.map(str::to_owned),
        path: path.map(str::to_owned),
    };
    let dependencies = vec![
        any("any", None, None),
        any("ours", None, Some("ours")),
        any("tools", Some("dev"), Some("tools")),
    ];
    let ours = Package { license: None, source: None, dependencies, ..package };
    assert_eq!(
        ours.objections(&policy),
        ["it names no licence", "it takes any version of any", "it takes any version of ours"]
    );
    let kept = Package { publish: Some(Vec::new()), ..ours };
    assert_eq!(kept.objections(&policy), ["it names no licence", "it takes any version of any"]);
}
