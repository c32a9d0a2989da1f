//! The part of an address that may be shown.

/// Whether a password may stand in the place of the port, because the `@HOST` behind it is missing. `rest`: the
/// address of one server, without its scheme.
pub fn ends_in_password(rest: &str) -> bool {
    let authority = rest.split(['/', '?', '#']).next().unwrap_or(rest);
    let host = authority.strip_prefix('[').and_then(|host| host.split_once(']'));
    let behind_address = host.map_or(authority, |(_address, port)| port);
    behind_address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_err())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_port_may_be_a_password() {
        for rest in
            ["app:secret", "app:", "app:70000", "a:b:secret", "[::1]:secret", "app:secret/path"]
        {
            assert!(ends_in_password(rest), "{rest}");
        }
        for rest in ["", "a", "a:4222", "a:4222/path", "a/path:secret", "[::1]", "[::1]:4222"] {
            assert!(!ends_in_password(rest), "{rest}");
        }
    }
}
