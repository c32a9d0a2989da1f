//! The hosts of a server, as an address lists them.

/// The host with its port, or with the default one. `None` without a host, or if what stands where a
/// port would is no number: in `user:password` without `@HOST`, that is the password.
pub fn with_port(host: &str, default: u16) -> Option<String> {
    let host = host.trim();
    // The colons of an IPv6 address are within brackets.
    let in_brackets = |text: &str| text.starts_with('[') && text.ends_with(']');
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !in_brackets(host) => {
            (name, port.parse::<u16>().ok().filter(|port| *port > 0)?)
        }
        _ => (host, default),
    };
    let is_host = !name.is_empty() && (in_brackets(name) || !name.contains(':'));
    is_host.then(|| format!("{name}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_its_port_or_the_default() {
        for (host, expected) in
            [("a", "a:7"), (" a:1 ", "a:1"), ("[::1]", "[::1]:7"), ("[::1]:65535", "[::1]:65535")]
        {
            assert_eq!(with_port(host, 7).as_deref(), Some(expected));
        }
    }

    #[test]
    fn what_may_be_a_password_is_no_port() {
        for host in
            ["", " ", ":1", "a:", "a:0", "a:65536", "a:secret", "a:sec]ret", "a:secret:1", "::1"]
        {
            assert_eq!(with_port(host, 7), None, "{host}");
        }
    }
}
