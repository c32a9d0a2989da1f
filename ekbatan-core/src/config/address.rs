//! Addresses of databases: their dialect and their parts.

use super::dialect::Dialect;

pub(super) fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

pub(super) fn dialect(url: &str) -> Option<Dialect> {
    if !url.contains(':') {
        return None;
    }
    dialect_of(scheme(url))
}

fn dialect_of(scheme: &str) -> Option<Dialect> {
    match scheme.to_ascii_lowercase().as_str() {
        "sqlite" => Some(Dialect::Sqlite),
        "postgres" | "postgresql" => Some(Dialect::Postgres),
        "mysql" => Some(Dialect::MySql),
        "mariadb" => Some(Dialect::MariaDb),
        _ => None,
    }
}

/// The dialect, with MySQL for both MySQL and MariaDB, whose servers accept both schemes.
pub(super) fn family(dialect: Dialect) -> Dialect {
    if dialect == Dialect::MariaDb { Dialect::MySql } else { dialect }
}

/// The address without what the drivers of SQL servers drop: white space at its end, and a `#` with what follows.
pub(super) fn opened(url: &str) -> &str {
    match dialect(url) {
        Some(Dialect::Postgres | Dialect::MySql | Dialect::MariaDb) => {
            url.split('#').next().unwrap_or_default().trim_end()
        }
        Some(Dialect::Sqlite) | None => url,
    }
}

/// The parts of `scheme://user:password@hosts/path?query`.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Parts<'a> {
    scheme: &'a str,
    /// What precedes the host, as it is written.
    login: Option<&'a str>,
    pub(super) user: Option<String>,
    pub(super) has_password: bool,
    pub(super) hosts: &'a str,
    pub(super) path: &'a str,
    pub(super) query: &'a str,
}

impl<'a> Parts<'a> {
    pub(super) fn of(url: &'a str) -> Self {
        let scheme = scheme(url);
        let Some((_, rest)) = url.split_once("://") else {
            let rest = url.split_once(':').map_or(url, |(_, rest)| rest);
            let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
            return Self { scheme, path, query, ..Self::default() };
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, "")))
        {
            Some((user, password)) => (Some(user), password),
            None => (None, ""),
        };
        let parameter = |name: &str| parameters(query).find(|(key, _)| *key == name);
        Self {
            scheme,
            user: user
                .filter(|user| !user.is_empty())
                .or_else(|| parameter("user").map(|(_, value)| value))
                .map(decoded),
            has_password: !password.is_empty() || parameter("password").is_some(),
            login,
            hosts,
            path,
            query,
        }
    }

    /// The parts that count when a connection is opened.
    pub(super) fn opened(url: &'a str) -> Self {
        Self::of(opened(url))
    }

    /// The server and the database on it, or the file, in one spelling: equal places hold the same
    /// data. `username` is the user that a key beside the address names.
    pub(super) fn place(&self, username: Option<&str>) -> String {
        if dialect_of(self.scheme) == Some(Dialect::Sqlite) {
            // `sqlite://folder/file` has no host; its folder stands where a host would be.
            return file(&decoded(&format!("{}{}", self.hosts, self.path)));
        }
        format!("{}{}", self.server(), self.database(username))
    }

    /// The database, with the slash before it.
    fn database(&self, username: Option<&str>) -> String {
        let scheme = self.scheme.to_ascii_lowercase();
        let path = match self.path {
            "/" => "",
            // The first database of Redis.
            "/0" if scheme.starts_with("redis") || scheme.starts_with("valkey") => "",
            path => path,
        };
        if dialect_of(&scheme) != Some(Dialect::Postgres) {
            return decoded(path);
        }
        // The driver prefers the parameters. Without a name the server takes the database that is named
        // like the user.
        let in_path = path.strip_prefix('/').map(decoded);
        let named = self.last_parameter(&["dbname"]).or(in_path);
        let user = username.map(str::to_owned).or_else(|| self.last_parameter(&["user"]));
        let named = named.or(user).or_else(|| self.user.clone());
        named.map(|name| format!("/{name}")).unwrap_or_default()
    }

    /// The value that the drivers apply if parameters of one meaning are given several times.
    fn last_parameter(&self, names: &[&str]) -> Option<String> {
        let values =
            parameters(self.query).filter(|(key, _)| names.contains(&decoded(key).as_str()));
        values.last().map(|(_, value)| decoded(value))
    }

    /// The server, or the members of a cluster, without the usual port. Parameters that the driver prefers
    /// to the host or the port take their places.
    pub(super) fn server(&self) -> String {
        match dialect_of(self.scheme) {
            Some(Dialect::Postgres) => self.postgres_server(),
            Some(Dialect::MySql | Dialect::MariaDb) => {
                let socket = self.last_parameter(&["socket"]);
                let socket = socket.map(|file| format!("?socket={file}")).unwrap_or_default();
                format!("{}{socket}", self.host_names())
            }
            _ => self.host_names(),
        }
    }

    fn postgres_server(&self) -> String {
        // The colons of an IPv6 address are within brackets.
        let with_port = self.hosts.rsplit_once(':').filter(|(_, port)| !port.contains(']'));
        let (host, port) = with_port.unwrap_or((self.hosts, ""));
        let host = self.last_parameter(&["host", "hostaddr"]).unwrap_or_else(|| decoded(host));
        let port = self.last_parameter(&["port"]).unwrap_or_else(|| port.to_owned());
        // The folder of a socket is no name of a host.
        let host = if host.starts_with('/') { host } else { host.to_ascii_lowercase() };
        if port.is_empty() || Some(port.as_str()) == usual_port("postgres") {
            host
        } else {
            format!("{host}:{port}")
        }
    }

    fn host_names(&self) -> String {
        let usual = usual_port(&self.scheme.to_ascii_lowercase());
        let without_port = |host: &'a str| match host.rsplit_once(':') {
            Some((name, port)) if Some(port) == usual => name,
            _ => host,
        };
        let hosts: Vec<&str> = self.hosts.split(',').map(str::trim).map(without_port).collect();
        hosts.join(",").to_ascii_lowercase()
    }

    /// Whether a `/`, `?` or `#` within the login ends it early. What follows then counts as path or
    /// parameter, and what precedes as host and port.
    pub(super) fn has_cut_login(&self) -> bool {
        if self.path.contains('@') || self.login.is_some_and(|login| login.contains('#')) {
            return true;
        }
        // An `@` in the value of a parameter need not be the end of a login, unless a database follows.
        let ends_login = |(name, value): (&str, &str)| {
            let after = value.split_once('@').map(|(_, after)| after);
            name.contains('@')
                || !["user", "password"].contains(&name)
                    && after.is_some_and(|after| self.path.is_empty() || after.contains('/'))
        };
        self.login.is_none() && parameters(self.query).any(ends_login)
    }

    /// The text in the place of a port, if it is none. It may be a part of a password.
    pub(super) fn no_port(&self) -> Option<&'a str> {
        let ports = self.hosts.split(',').filter_map(|host| {
            // The colons of an IPv6 address are within brackets.
            let (_, port) = host.rsplit_once(':').filter(|(_, port)| !port.contains(']'))?;
            Some(port)
        });
        ports
            .into_iter()
            .find(|port| !port.is_empty() && port.parse::<u16>().map_or(true, |number| number == 0))
    }

    pub(super) fn several_hosts(&self) -> bool {
        self.hosts.contains(',')
    }
}

/// The port of an address that names none.
fn usual_port(scheme: &str) -> Option<&'static str> {
    Some(match scheme {
        "postgres" | "postgresql" => "5432",
        "mysql" | "mariadb" => "3306",
        "redis" | "rediss" | "valkey" | "valkeys" => "6379",
        "etcd" | "etcds" => "2379",
        "mongodb" => "27017",
        "aerospike" => "3000",
        "hbase" => "16000",
        _ => return None,
    })
}

/// A file's absolute path, without links if its folder exists.
fn file(path: &str) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let resolved = absolute.canonicalize().ok().or_else(|| {
        let folder = absolute.parent()?.canonicalize().ok()?;
        Some(folder.join(absolute.file_name()?))
    });
    resolved.unwrap_or(absolute).display().to_string()
}

/// The `name=value` pairs of a query.
pub(super) fn parameters(query: &str) -> impl Iterator<Item = (&str, &str)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

/// Decodes percent-escapes such as `%20`.
pub fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let hex = |at: usize| after.get(at).and_then(|b| char::from(*b).to_digit(16));
        match (first, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Percent-encodes a text for use in an address.
pub(super) fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behaviour_62_the_dialect_follows_the_scheme_and_not_the_names() {
        for (url, expected) in [
            ("postgres://mysql.example/mariadb", Some(Dialect::Postgres)),
            ("postgresql://a,b/mysql", Some(Dialect::Postgres)),
            ("mysql://postgres:5432/postgresql", Some(Dialect::MySql)),
            ("mariadb://mysql-cluster/mysql", Some(Dialect::MariaDb)),
            ("sqlite:postgres.db", Some(Dialect::Sqlite)),
            ("redis://postgres", None),
            ("postgres", None),
        ] {
            assert_eq!(dialect(url), expected, "{url}");
        }
    }

    #[test]
    fn an_address_is_split_into_user_hosts_and_database() {
        let parts = Parts::of("postgres://a%40b:pw@h1:1,h2/shop?sslmode=require");
        assert_eq!(parts.user.as_deref(), Some("a@b"));
        assert!(parts.has_password && parts.several_hosts());
        assert_eq!((parts.hosts, parts.path, parts.query), ("h1:1,h2", "/shop", "sslmode=require"));
        assert_eq!(decoded(&encoded("a@b:%/ü")), "a@b:%/ü");
    }

    #[test]
    fn spellings_of_one_server_are_one_place() {
        let place = |url| Parts::opened(url).place(None);
        for (one, same) in [
            ("postgres://A@DB/shop", "postgresql://b@db:5432/sh%6Fp?x=y"),
            ("postgres://db", "Postgres://db/"),
            ("postgres://shop@db", "postgres://b@db/shop"),
            ("postgres://a@db/?dbname=sh%6Fp", "postgres://b@db/other?dbname=x&dbname=shop"),
            ("postgres://db/shop", "postgres://db/shop?port=5432"),
            ("postgres://db:5433/shop", "postgres://db/shop?port=5433"),
            ("postgres://db:5433/shop?port=5432", "postgres://db/shop"),
            ("postgres:///shop?host=DB", "postgres://db/shop"),
            ("postgres://other/shop?host=db&port=5433", "postgres://db:5433/shop"),
            ("postgres://db/shop?host=db&hostaddr=10.0.0.1", "postgres://10.0.0.1/shop"),
            ("postgres://%2Frun%2FPg/shop", "postgres:///shop?host=/run/Pg"),
            ("postgres://db/shop#europe", "postgres://db/shop#america"),
            ("postgres://db/shop?x=y#europe ", "postgres://db/shop "),
            ("mysql://db/shop#europe", "mysql://db/shop"),
            ("mysql://db/shop", "mariadb://db:3306/shop"),
            ("mysql://[::1]:3306/shop", "mysql://[::1]/shop"),
            ("redis://cache", "rediss://Cache:6379/0"),
            ("redis://cache", "valkey://cache:6379/0"),
            ("valkeys://cache/", "valkey://cache/0"),
            // The driver ignores these.
            ("mysql://db/shop", "mysql://db/shop?port=3307&dbname=other"),
            ("etcd://a:2379,b", "etcd://a, b:2379"),
            ("hbase://a:16000/t", "hbase://a/t"),
        ] {
            assert_eq!(place(one), place(same), "{same}");
        }
        for (one, other) in [
            ("postgres://db/shop", "postgres://db:5433/shop"),
            ("postgres://db/shop", "postgres://db/Shop"),
            ("postgres://db/?dbname=europe", "postgres://db/?dbname=america"),
            ("postgres://db/shop?host=a", "postgres://db/shop?host=b"),
            ("postgres://db/shop", "postgres://db/shop?hostaddr=10.0.0.1"),
            ("postgres://db/shop", "postgres://db/shop?port=5433"),
            ("postgres:///shop?host=/run/a", "postgres:///shop?host=/run/A"),
            ("postgres://a@db", "postgres://b@db"),
            ("postgres://a@db?user=b", "postgres://a@db?user=c"),
            ("mysql://db/shop?socket=/run/a", "mysql://db/shop?socket=/run/b"),
            ("mysql://db/shop", "mysql://127.0.0.1/shop"),
            ("redis://cache:2379", "redis://cache"),
            ("redis://cache/1", "redis://cache/2"),
        ] {
            assert_ne!(place(one), place(other), "{other}");
        }
    }

    #[test]
    fn the_user_beside_an_address_names_the_database_of_postgres() {
        let place = |url, username| Parts::of(url).place(username);
        assert_ne!(place("postgres://db", Some("a")), place("postgres://db", Some("b")));
        assert_eq!(place("postgres://db/shop", Some("a")), place("postgres://db/shop", Some("b")));
        assert_eq!(place("mysql://db", Some("a")), place("mysql://db", Some("b")));
    }

    #[test]
    fn paths_to_one_file_are_one_place() {
        let place = |url| Parts::of(url).place(None);
        for same in
            ["sqlite:./a", "sqlite://a", "sqlite:./src/../a", "sqlite:a?mode=rwc", "sqlite:%61"]
        {
            assert_eq!(place(same), place("sqlite:a"), "{same}");
        }
        for other in ["sqlite:A", "sqlite:b/a", "sqlite:/a", "sqlite:a.db"] {
            assert_ne!(place(other), place("sqlite:a"), "{other}");
        }
    }

    #[test]
    fn a_login_that_ends_early_is_noticed() {
        for url in [
            "postgres://app:p4/ss@db/shop",
            "postgres://app:1234/ss@db/shop",
            "postgres://app:p4?ss@db/shop",
            "postgres://app:p4?s=s@db/shop",
            "postgres://app:12/34?s=s@db/shop",
            "postgres://app:p4#ss@db/shop",
            "postgres://app@corp:p4/ss@db/shop",
            "redis://:p4/ss@cache",
        ] {
            assert!(Parts::of(url).has_cut_login(), "{url}");
        }
        for url in [
            "postgres://app:p4@ss@db/shop",
            "postgres://app:p4%2Fss@db/shop?sslmode=require",
            "postgres://db/shop?user=app@corp&password=p@ss",
            "postgres://db:5432?user=app@corp",
            "mongodb://app:p4ss@db/?appName=@app@",
            "mysql://db:3306/shop",
        ] {
            assert!(!Parts::of(url).has_cut_login(), "{url}");
        }
    }

    #[test]
    fn a_port_is_a_number_up_to_65535() {
        for (url, expected) in [
            ("postgres://db:5432/shop", None),
            ("postgres://db/shop", None),
            ("postgres://app:1x@db:/shop", None),
            ("postgres://[::1]/shop", None),
            ("postgres://[::1]:5432/shop", None),
            ("sqlite:a:b", None),
            ("postgres://db:x/shop", Some("x")),
            ("postgres://db:65536/shop", Some("65536")),
            ("postgres://a:1,b:0/shop", Some("0")),
            ("mysql://[::1]:-1/shop", Some("-1")),
        ] {
            assert_eq!(Parts::of(url).no_port(), expected, "{url}");
        }
    }
}
