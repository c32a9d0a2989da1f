//! Spellings of keys: kebab-case, camelCase, snake_case and mixtures mean the same key.
//!
//! Two spellings are equal if they differ only in case and in the separators `-`, `_` and space.
//! Internally keys are in kebab-case. Users get the names of slots in camelCase.

/// The names of a table. The keys list them, so that every word of a key has its value.
pub(super) const fn names<T, const N: usize>(table: &[(&'static str, T); N]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = table[at].0;
        at += 1;
    }
    names
}

/// Whether two spellings mean one key.
pub(crate) fn same_key(left: &str, right: &str) -> bool {
    squashed(left).eq(squashed(right))
}

fn squashed(key: &str) -> impl Iterator<Item = char> {
    key.chars().filter(|c| !matches!(c, '-' | '_' | ' ')).flat_map(char::to_lowercase)
}

/// Converts every spelling to kebab-case: `lockConfig` and `LOCK_CONFIG` to `lock-config`. Capitals that
/// follow each other are one word, up to the one that begins the next: `lockDBConfig` is `lock-db-config`.
pub(super) fn kebab(key: &str) -> String {
    let mut kebab = String::with_capacity(key.len() + 4);
    let (mut after_small, mut after_letter) = (false, false);
    let mut letters = key.chars().peekable();
    while let Some(c) = letters.next() {
        if matches!(c, '-' | '_' | ' ') {
            kebab.push('-');
            (after_small, after_letter) = (false, false);
            continue;
        }
        let ends_capitals = after_letter && letters.peek().is_some_and(|next| next.is_lowercase());
        if c.is_uppercase() && (after_small || ends_capitals) {
            kebab.push('-');
        }
        kebab.extend(c.to_lowercase());
        (after_small, after_letter) = (!c.is_uppercase(), true);
    }
    kebab
}

/// Converts every spelling to camelCase: `lock-config` to `lockConfig`.
pub(super) fn camel(key: &str) -> String {
    let mut camel = String::with_capacity(key.len());
    let kebab = kebab(key);
    for word in kebab.split('-').filter(|word| !word.is_empty()) {
        let mut letters = word.chars();
        match letters.next() {
            Some(first) if !camel.is_empty() => camel.extend(first.to_uppercase()),
            Some(first) => camel.push(first),
            None => {}
        }
        camel.push_str(letters.as_str());
    }
    camel
}

/// The known name that is most similar to `name`, if one is similar enough.
pub(super) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: String = squashed(name).collect();
    known
        .into_iter()
        .map(|candidate| {
            let squashed: String = squashed(candidate).collect();
            (strsim::jaro_winkler(&name, &squashed), candidate)
        })
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|left, right| left.0.total_cmp(&right.0))
        .map(|(_, candidate)| candidate)
}

/// Whether `name` is probably `known` with a mistake in it: it begins alike, and one or two letters are
/// other ones. A digit makes a name of its own, such as `secondary2-config`. So does a further word.
pub(super) fn is_misspelled(name: &str, known: &str) -> bool {
    let words = |key: &str| kebab(key).split('-').count();
    if words(name) > words(known) || name.contains(|c: char| c.is_ascii_digit()) {
        return false;
    }
    let (name, known): (String, String) = (squashed(name).collect(), squashed(known).collect());
    // `log-config` is no misspelled `lock-config`.
    let most = if name.ends_with("config") && known.len() < 12 { 1 } else { 2 };
    name != known
        && name.chars().next() == known.chars().next()
        && strsim::osa_distance(&name, &known) <= most
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kebab_camel_snake_and_mixtures_are_one_key() {
        for spelling in ["jdbc-url", "jdbcUrl", "jdbc_url", "JDBC_URL", "jdbc-Url", "jdbcurl"] {
            assert!(same_key(spelling, "jdbc-url"), "{spelling}");
        }
        assert!(!same_key("jdbc-url", "url"));
    }

    #[test]
    fn slots_are_named_in_camel_case() {
        for spelling in ["lock-config", "lockConfig", "lock_config", "LOCK_CONFIG", "lock-Config"] {
            assert_eq!(kebab(spelling), "lock-config", "{spelling}");
            assert_eq!(camel(spelling), "lockConfig", "{spelling}");
        }
        for spelling in ["lock-b-config", "lockBConfig", "LOCK_B_CONFIG", "lock-BConfig"] {
            assert_eq!(kebab(spelling), "lock-b-config", "{spelling}");
        }
        assert_eq!(kebab("secondaryEUConfig"), "secondary-eu-config");
        assert_eq!(kebab("URL"), "url");
    }

    #[test]
    fn a_misspelled_key_finds_the_nearest_one() {
        assert_eq!(nearest("passwrod", ["url", "password", "username"]), Some("password"));
        assert_eq!(nearest("maxPoolSize", ["maximum-pool-size", "url"]), Some("maximum-pool-size"));
        assert_eq!(nearest("colour", ["url", "password"]), None);
    }
}
