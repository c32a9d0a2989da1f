//! Addresses without their passwords, as errors and logs show them.

use super::address::decoded;

/// The address with `***` instead of the password. Of a malformed address it hides too much
/// rather than too little.
pub(super) fn shown(url: &str) -> String {
    // The login starts after `//`, or after the first colon if `//` is missing or misplaced.
    let login = url.rfind('@').unwrap_or_default();
    let start = match url.find("://") {
        Some(at) => at + 3,
        None => url.find("//").map(|at| at + 2).filter(|at| *at <= login).unwrap_or_else(|| {
            url.find(':').map(|at| at + 1).filter(|at| *at <= login).unwrap_or_default()
        }),
    };
    let mut shown = String::from(&url[..start]);
    let mut rest = &url[start..];
    if start > 0
        && let Some(end) = rest.rfind('@')
    {
        if has_parameter(&rest[..end]) {
            // The `@` may be within a parameter, so nobody knows where the login ends. The text before the
            // first sign is a host or a user, unless the scheme is missing.
            if url[..start].ends_with("//") {
                shown.push_str(
                    rest.split([':', '/', '@', '?', '&', ',', ';', '(']).next().unwrap_or_default(),
                );
            }
            shown.push_str("***");
            return shown;
        }
        match rest[..end].find(':') {
            Some(colon) => {
                shown.push_str(&rest[..=colon]);
                shown.push_str("***");
            }
            None if url[..start].ends_with("//") => shown.push_str(&rest[..end]),
            // What looks like a scheme may be the user.
            None => shown.push_str("***"),
        }
        rest = &rest[end..];
    }
    let query = rest.find('?').unwrap_or(rest.len());
    let (path, query) = rest.split_at(query);
    // Connector/J accepts `(host=..,password=..)` instead of a host.
    shown.extend(path.split_inclusive([',', ';', '(', ')']).map(without_secret));
    shown.extend(query.split_inclusive(['?', '&']).map(without_any_secret));
    shown
}

/// Whether a text may contain a `name=value` that is no part of a login.
fn has_parameter(text: &str) -> bool {
    let signs = text.find(['?', '&', ',', ';', '(']);
    signs.is_some_and(|at| text[at..].contains('='))
}

/// One part of a query. It may contain further `name=value` pairs. A secret may contain the
/// characters that separate them, so everything after its name is hidden.
fn without_any_secret(part: &str) -> String {
    let starts = part.match_indices([';', ',', '(']).map(|(at, _)| at + 1);
    let name = |at: &usize| part[*at..].split('=').next().unwrap_or_default();
    match std::iter::once(0).chain(starts).find(|at| is_secret(name(at))) {
        Some(at) => format!("{}{}", &part[..at], without_secret(&part[at..])),
        None => part.to_owned(),
    }
}

fn is_secret(name: &str) -> bool {
    let plain = decoded(name).to_ascii_lowercase();
    ["pass", "pwd", "secret", "token"].iter().any(|word| plain.contains(word))
}

/// A `name=value` with its terminator. The value is hidden if it may be a secret.
fn without_secret(pair: &str) -> String {
    let end = pair
        .rfind(|c| !"?&,;()".contains(c))
        .map_or(0, |at| at + pair[at..].chars().next().map_or(0, char::len_utf8));
    let (text, sign) = pair.split_at(end);
    let (name, value) = text.split_once('=').unwrap_or((text, ""));
    if !is_secret(name) {
        return pair.to_owned();
    }
    match value {
        // Only the name of a key, without a value.
        "" if name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b)) => {
            pair.to_owned()
        }
        "" => format!("***{sign}"),
        _ => format!("{name}=***{sign}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_hidden_in_every_position() {
        for (url, expected) in [
            ("postgres://app:s3cret@db/shop", "postgres://app:***@db/shop"),
            ("postgres://app:s3cr@t@db/shop", "postgres://app:***@db/shop"),
            ("postgres://app:s3/cr?e#t@db/shop", "postgres://app:***@db/shop"),
            ("redis://:s3cret@cache", "redis://:***@cache"),
            ("postgres://app@db:5432/shop", "postgres://app@db:5432/shop"),
            (
                "postgres://db/shop?user=a&password=s3cret&x=y",
                "postgres://db/shop?user=a&password=***&x=y",
            ),
            ("postgres://db/shop?PassWord=s3cret", "postgres://db/shop?PassWord=***"),
            ("mysql://db/shop?p%61ssword=s3cret", "mysql://db/shop?p%61ssword=***"),
            ("postgres://db/shop?password:s3cret", "postgres://db/shop?***"),
            ("mysql://(host=db,password=s3cret)/shop", "mysql://(host=db,password=***)/shop"),
            ("redis://cache/0?password=s3,cr(e)t;x", "redis://cache/0?password=***"),
            ("sqlite:wallet.db", "sqlite:wallet.db"),
            ("jdbc:mysql://app:s3cret@db/shop", "jdbc:mysql://app:***@db/shop"),
            ("app:s3cret@db:5432/shop", "app:***@db:5432/shop"),
            ("postgres:app:s3cret@db", "postgres:app:***@db"),
            // An `@` in a parameter ends no login.
            ("postgres://db/shop?user=app&password=s3cr@t", "postgres://db***"),
            ("postgres://h:5432/d?user=app@h&sslmode=require&password=s3cret", "postgres://h***"),
            ("mysql://db/shop;password=s3cret;x@y", "mysql://db***"),
            ("mysql://(host=db,password=s3cret)/x@y", "mysql://***"),
            ("app:s3cret?x=y@db", "app:***"),
            ("postgres://app:s3cr=t@db/shop", "postgres://app:***@db/shop"),
        ] {
            assert_eq!(shown(url), expected);
        }
    }
}
