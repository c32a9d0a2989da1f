//! The servers and the table that a configuration names.

use std::collections::HashMap;

use ekbatan_core::config::{DataSourceConfig, TlsMode, decoded};
use ekbatan_lock::{BackendError, LockError, with_port};

/// The port of masters, where none is written.
const PORT: u16 = 16_000;

/// The table, where none is written.
const TABLE: &str = "ekbatan_locks";

/// The user that is named to the cluster, where none is written.
const USER: &str = "ekbatan";

/// Where the cluster is, and which table has the locks.
#[derive(Debug, Clone)]
pub(crate) struct Address {
    servers: Vec<String>,
    table: Table,
    /// The identity of the one cluster that all zones share, if the configuration names it.
    cluster: Option<String>,
    /// Where a server is reached that is not at the address that the cluster names.
    via: HashMap<String, String>,
    user: String,
}

/// A table, within a namespace of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Table {
    pub(crate) namespace: String,
    pub(crate) qualifier: String,
}

impl Table {
    /// As the cluster names it.
    pub(crate) fn name(&self) -> String {
        match self.namespace.as_str() {
            "default" => self.qualifier.clone(),
            namespace => format!("{namespace}:{}", self.qualifier),
        }
    }
}

impl Address {
    /// Reads `hbase://[user@]host[:port][,host[:port]]..[/table][?cluster=ID&via=SERVER=ADDRESS]`.
    pub(crate) fn of(server: &DataSourceConfig) -> Result<Self, LockError> {
        let unusable = |address: &str, why: &str| {
            let message = format!(
                "{address} of the locks {why}; write hbase://HOST:{PORT}/TABLE with the masters of \
                 the cluster, several as hbase://HOST:{PORT},HOST:{PORT}/TABLE"
            );
            LockError::Start { source: BackendError::new(message) }
        };
        let (scheme, rest) = server.url.split_once("://").unwrap_or_default();
        if !scheme.eq_ignore_ascii_case("hbase") {
            // In an address of another form, a password may be anywhere.
            return Err(unusable("the address", "does not begin with hbase://"));
        }
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        // A password may contain a `/`.
        let (login, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        if !password.is_empty() || server.password.is_some() {
            return Err(refused(
                "a password is given, and HBase checks none over this connection: the user is only \
                 named. Remove the password, and protect the cluster by its network",
            ));
        }
        not_encrypted(server)?;
        let user = server.username.clone().unwrap_or_else(|| decoded(user));
        // In `user:password` without `@HOST`, the password stands where a port would.
        let bad_host = || unusable("the address", "lacks a host, or has a port that is no number");
        let servers = hosts.split(',').map(|host| with_port(host, PORT)).collect::<Option<_>>();
        let servers = servers.ok_or_else(bad_host)?;
        if login.contains('/') || parameters.contains('@') {
            let why = "has a `/` or a `?` in its user; write %2F or %3F in place of it";
            return Err(unusable("the address", why));
        }
        // What is not checked may be a secret.
        let wrong = |why: &str| unusable(&format!("the address `{scheme}://{hosts}`"), why);
        let mut address = Self {
            servers,
            table: table(path.trim_end_matches('/'))?,
            cluster: None,
            via: HashMap::new(),
            user: if user.is_empty() { USER.to_owned() } else { user },
        };
        for parameter in parameters.split('&').filter(|it| !it.is_empty()) {
            match parameter.split_once('=') {
                Some(("cluster", id)) if !id.is_empty() => address.cluster = Some(id.to_owned()),
                Some(("via", pair)) => {
                    let pair = pair.split_once('=');
                    let pair = pair
                        .and_then(|(of, at)| Some((with_port(of, PORT)?, with_port(at, PORT)?)));
                    let (of, at) = pair
                        .ok_or_else(|| wrong("has a `via` that is not SERVER:PORT=ADDRESS:PORT"))?;
                    address.via.insert(of, at);
                }
                named => {
                    let what = match named {
                        Some((name, _)) => format!("the parameter `{name}`"),
                        // It may be a part of the value before.
                        None => "a parameter without a value".to_owned(),
                    };
                    return Err(wrong(&format!(
                        "has {what}, and HBase knows `cluster=ID` and \
                         `via=SERVER:PORT=ADDRESS:PORT`"
                    )));
                }
            }
        }
        Ok(address)
    }

    /// The servers of the configuration, `host:port`.
    pub(crate) fn servers(&self) -> &[String] {
        &self.servers
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    pub(crate) fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    pub(crate) fn user(&self) -> &str {
        &self.user
    }

    /// The address at which a server is reached.
    pub(crate) fn reached<'a>(&'a self, server: &'a str) -> &'a str {
        self.via.get(server).map_or(server, String::as_str)
    }
}

pub(crate) fn refused(reason: &str) -> LockError {
    LockError::Unsafe { reason: format!("HBase: {reason}") }
}

fn table(path: &str) -> Result<Table, LockError> {
    let name = if path.is_empty() { TABLE } else { path };
    let (namespace, qualifier) = name.split_once(':').unwrap_or(("default", name));
    let is_name = |text: &str| {
        let letters = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
        text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
            && text.chars().all(letters)
    };
    if !is_name(namespace) || namespace.contains(['-', '.']) || !is_name(qualifier) {
        return Err(refused(&format!(
            "`{name}` is no name of a table; use letters, digits, `_`, `-` and `.`, and write the \
             table of a namespace as NAMESPACE:TABLE"
        )));
    }
    Ok(Table { namespace: namespace.to_owned(), qualifier: qualifier.to_owned() })
}

/// Refuses to connect with less encryption than configured, which is any.
fn not_encrypted(server: &DataSourceConfig) -> Result<(), LockError> {
    let wanted = match server.tls_mode {
        None | Some(TlsMode::Disable | TlsMode::Prefer) => server.tls_root_cert.is_some(),
        Some(_) => true,
    };
    if wanted {
        return Err(refused(
            "encryption is configured, and connections to HBase are not encrypted; remove `tls-mode` \
             and `tls-root-cert`, and protect the cluster by its network",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address, String> {
        Address::of(&DataSourceConfig::new(url)).map_err(|error| error.to_string())
    }

    #[test]
    fn masters_are_separated_by_commas_and_have_a_usual_port() {
        for (url, servers, table) in [
            ("hbase://a", vec!["a:16000"], "ekbatan_locks"),
            (
                "HBASE://a:1,b,[::1]:2,[::1]/",
                vec!["a:1", "b:16000", "[::1]:2", "[::1]:16000"],
                "ekbatan_locks",
            ),
            ("hbase://me@a/wallet.locks-1", vec!["a:16000"], "wallet.locks-1"),
            ("hbase://a/apps:locks", vec!["a:16000"], "apps:locks"),
        ] {
            let address = read(url).unwrap();
            assert_eq!(
                (address.servers(), address.table().name().as_str()),
                (&servers[..].iter().map(|it| it.to_string()).collect::<Vec<_>>()[..], table),
                "{url}"
            );
        }
    }

    #[test]
    fn the_user_of_the_configuration_comes_before_that_of_the_address() {
        assert_eq!(read("hbase://a").unwrap().user(), "ekbatan");
        assert_eq!(read("hbase://me@a").unwrap().user(), "me");
        assert_eq!(read("hbase://a%40b%2Fc@a").unwrap().user(), "a@b/c");
        let literally = DataSourceConfig::new("hbase://a").username("a%40b");
        assert_eq!(Address::of(&literally).unwrap().user(), "a%40b");
        let named = DataSourceConfig::new("hbase://me@a").username("you");
        assert_eq!(Address::of(&named).unwrap().user(), "you");
    }

    #[test]
    fn parameters_name_the_cluster_and_other_addresses() {
        let address = read("hbase://a/t?cluster=x-1&via=h:16020=127.0.0.1:7&via=i=j:8").unwrap();
        assert_eq!(address.cluster(), Some("x-1"));
        assert_eq!(address.reached("h:16020"), "127.0.0.1:7");
        assert_eq!(address.reached("i:16000"), "j:8");
        assert_eq!(address.reached("k:1"), "k:1");
        for wrong in
            ["hbase://a?via=h", "hbase://a?via=h:x=i", "hbase://a?cluster=", "hbase://a?x=1"]
        {
            assert!(read(wrong).unwrap_err().contains("hbase://HOST:16000/TABLE"));
        }
    }

    #[test]
    fn no_value_of_a_parameter_is_shown() {
        for (url, name) in [
            ("hbase://a?apikey=hidden", "the parameter `apikey`"),
            ("hbase://a/t?cluster=hidden&x=hidden", "the parameter `x`"),
            ("hbase://a?via=hidden", "a `via` that is not"),
            ("hbase://a?via=b=hidden:x", "a `via` that is not"),
            ("hbase://a?cluster=hid&den", "a parameter without a value"),
            ("hbase://a,?cluster=hidden", "lacks a host"),
            ("hbase://a:hidden", "a port that is no number"),
            ("redis://a?cluster=hidden", "does not begin with hbase://"),
            ("hbase://a/hid@b?x=hidden", "write %2F"),
            ("hbase://a:1?hid=den@b", "write %2F or %3F"),
        ] {
            let error = read(url).unwrap_err();
            assert!(error.contains(name) && error.contains("write hbase://HOST"), "{error}");
            assert!(!error.contains("hid") && !error.contains("den"), "{url}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_kept_is_refused_by_name() {
        for (url, reason) in [
            ("hbase:a", "does not begin with hbase://"),
            ("redis://a", "does not begin with hbase://"),
            ("hbase://", "lacks a host"),
            ("hbase://a,,b", "lacks a host"),
            ("hbase://a:port", "lacks a host"),
            ("hbase://a/b/c", "no name of a table"),
            ("hbase://a/-b", "no name of a table"),
            ("hbase://u:secret@a", "a password is given"),
            ("hbase://u:se/secret@a", "a password is given"),
            ("hbase://u:1/secret@a", "a password is given"),
            ("hbase://u:secret", "lacks a host"),
            ("hbase://u:secret/t", "lacks a host"),
            ("hbase://u/a@b:secret", "lacks a host"),
            ("redis://u:secret", "does not begin with hbase://"),
            ("u:secret", "does not begin with hbase://"),
        ] {
            let error = read(url).unwrap_err();
            assert!(error.contains(reason), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        let mut config = DataSourceConfig::new("hbase://a");
        config.tls_mode = Some(TlsMode::Require);
        assert!(Address::of(&config).unwrap_err().to_string().contains("not encrypted"));
        let with_password = DataSourceConfig::new("hbase://a").password("secret");
        let error = Address::of(&with_password).unwrap_err().to_string();
        assert!(error.contains("a password is given") && !error.contains("secret"), "{error}");
    }
}
