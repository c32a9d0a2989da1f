//! The members and the login of the cluster that a configuration names.
//!
//! Invariant: a connection is never less encrypted than configured.

use std::path::Path;
use std::time::Duration;

use ekbatan_core::config::{DataSourceConfig, ExposeSecret, TlsMode, decoded};
use ekbatan_lock::{BackendError, LockError, with_port};
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// Maximum time for the server to answer, and to accept a connection.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// Time between pings while a request is open. Servers close connections that ping more often
/// than every five seconds.
const PING: Duration = Duration::from_secs(10);

/// The port of etcd for clients.
const PORT: u16 = 2379;

/// Where the cluster is, and how to log in.
pub(crate) struct Address {
    pub(crate) first: Member,
    pub(crate) others: Vec<Member>,
    pub(crate) login: Option<Login>,
}

/// One member, as `host:port` and as it is connected to.
#[derive(Clone)]
pub(crate) struct Member {
    pub(crate) name: String,
    pub(crate) endpoint: Endpoint,
}

#[derive(Clone)]
pub(crate) struct Login {
    pub(crate) user: String,
    pub(crate) password: String,
}

impl Address {
    /// Reads `etcd://[user:password@]host[:port][,host[:port]]..`, or `etcds://..` for encryption.
    pub(crate) fn of(server: &DataSourceConfig) -> Result<Self, LockError> {
        let unusable = |address: &str, why: &str| {
            let message = format!(
                "{address} of the locks {why}; write etcd://HOST:2379, several members as \
                 etcd://HOST:2379,HOST:2379, and etcds:// for encryption"
            );
            LockError::Start { source: BackendError::new(message) }
        };
        // In an address of another form, a password may be anywhere.
        let (scheme, rest) = server.url.split_once("://").unwrap_or_default();
        let by_scheme = match scheme.to_ascii_lowercase().as_str() {
            "etcd" => None,
            "etcds" => Some(TlsMode::VerifyFull),
            _ => return Err(unusable("the address", "begins with neither etcd:// nor etcds://")),
        };
        let encrypted = encryption(by_scheme, server)?;
        let (login, hosts) = match rest.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, rest),
        };
        let (hosts, path) = hosts.split_at(hosts.find(['/', '?']).unwrap_or(hosts.len()));
        // In `user:password` without `@HOST`, the password stands where a port would. The client
        // replaces a wrong port by the default port of HTTP.
        let bad_host = || unusable("the address", "lacks a host, or has a port that is no number");
        let names = hosts.split(',').map(|host| with_port(host, PORT)).collect::<Option<Vec<_>>>();
        let names = names.ok_or_else(bad_host)?;
        // What is not checked may be a secret.
        let wrong = |why: &str| unusable(&format!("the address `{scheme}://{hosts}`"), why);
        if !matches!(path, "" | "/") {
            return Err(wrong("has a path or parameters, which etcd has no use for"));
        }
        let tls = if encrypted { Some(tls(server.tls_root_cert.as_deref())?) } else { None };
        let mut members = Vec::new();
        for name in names {
            let uri = format!("{}://{name}", if encrypted { "https" } else { "http" });
            let endpoint = Endpoint::from_shared(uri).map_err(|error| wrong(&not_a(&error)))?;
            let endpoint = endpoint
                .connect_timeout(ANSWER)
                .tcp_nodelay(true)
                .http2_keep_alive_interval(PING)
                .keep_alive_timeout(ANSWER);
            let endpoint = match &tls {
                Some(tls) => {
                    endpoint.tls_config(tls.clone()).map_err(|error| wrong(&not_a(&error)))?
                }
                None => endpoint,
            };
            members.push(Member { name, endpoint });
        }
        let mut members = members.into_iter();
        let first = members.next().ok_or_else(bad_host)?;
        Ok(Self { first, others: members.collect(), login: self::login(login, server)? })
    }
}

fn not_a(error: &tonic::transport::Error) -> String {
    format!("cannot be used ({error})")
}

/// The login of the configuration, or that of the address.
fn login(in_address: Option<&str>, server: &DataSourceConfig) -> Result<Option<Login>, LockError> {
    let (user, password) = match in_address {
        Some(login) => login.split_once(':').unwrap_or((login, "")),
        None => ("", ""),
    };
    let user = server.username.clone().unwrap_or_else(|| decoded(user));
    let password = match &server.password {
        Some(password) => password.expose_secret().to_owned(),
        None => decoded(password),
    };
    if user.is_empty() && !password.is_empty() {
        let message = "the login of the locks in etcd has a password and no user; write \
                       etcd://USER:PASSWORD@HOST:2379, or give `username` beside `password`, or \
                       remove the password if the cluster wants no login";
        return Err(LockError::Start { source: BackendError::new(message) });
    }
    Ok((!user.is_empty()).then_some(Login { user, password }))
}

/// Whether to encrypt. The certificate is always checked in full.
fn encryption(by_scheme: Option<TlsMode>, server: &DataSourceConfig) -> Result<bool, LockError> {
    let refused = |reason: &str| Err(LockError::Unsafe { reason: reason.to_owned() });
    match (server.tls_mode, by_scheme) {
        (Some(TlsMode::Disable), Some(_)) => refused(
            "tls-mode is `disable` and the address begins with etcds://; remove the key, or \
             write etcd://..",
        ),
        (Some(mode @ (TlsMode::Require | TlsMode::VerifyCa)), _) => refused(&format!(
            "tls-mode is `{}`, and locks in etcd check certificates in full; write `verify-full`, \
             with the file of the authority as tls-root-cert if it is your own",
            if mode == TlsMode::Require { "require" } else { "verify-ca" }
        )),
        (None | Some(TlsMode::Disable | TlsMode::Prefer), None)
            if server.tls_root_cert.is_some() =>
        {
            refused(
                "tls-root-cert is given and the connection is not encrypted; write etcds://.., or \
                 tls-mode: verify-full",
            )
        }
        (mode, by_scheme) => Ok(by_scheme.is_some() || mode == Some(TlsMode::VerifyFull)),
    }
}

fn tls(root_cert: Option<&Path>) -> Result<ClientTlsConfig, LockError> {
    let tls = ClientTlsConfig::new().timeout(ANSWER);
    let Some(file) = root_cert else { return Ok(tls.with_webpki_roots()) };
    let certificates = std::fs::read(file).map_err(|error| {
        let what = format!("the certificates of tls-root-cert, `{}`", file.display());
        LockError::Start { source: BackendError::caused(what, error) }
    })?;
    Ok(tls.ca_certificate(Certificate::from_pem(certificates)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &DataSourceConfig) -> Result<(Vec<String>, Option<Login>), String> {
        match Address::of(config) {
            Ok(address) => {
                let members = std::iter::once(address.first).chain(address.others);
                Ok((members.map(|it| it.name).collect(), address.login))
            }
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn members_are_separated_by_commas_and_have_a_usual_port() {
        for (url, expected) in [
            ("etcd://a", vec!["a:2379"]),
            ("etcd://a:1,b,[::1]:2,[::1]/", vec!["a:1", "b:2379", "[::1]:2", "[::1]:2379"]),
            ("ETCDS://u:p@a", vec!["a:2379"]),
        ] {
            assert_eq!(read(&DataSourceConfig::new(url)).unwrap().0, expected, "{url}");
        }
    }

    #[test]
    fn a_wrong_address_is_refused_without_its_password() {
        for url in ["etcd:a", "redis://a", "etcd://", "etcd://a,,b", "etcd://a/b", "etcd://u:pw@"] {
            let error = read(&DataSourceConfig::new(url)).err().expect(url);
            assert!(error.contains("write etcd://HOST:2379"), "{error}");
            assert!(!error.contains("pw"), "{error}");
        }
    }

    #[test]
    fn a_port_is_a_number_and_no_value_of_a_parameter_is_shown() {
        for url in ["etcd://a:", "etcd://a:hidden", "etcd://b,a:65536", "etcd://[::1]:-1"] {
            let error = read(&DataSourceConfig::new(url)).err().expect(url);
            assert!(error.contains("a port that is no number"), "{url}: {error}");
            assert!(!error.contains("hidden"), "{error}");
        }
        let error = read(&DataSourceConfig::new("etcd://a?apikey=hidden")).err().unwrap();
        assert!(error.contains("parameters") && !error.contains("hidden"), "{error}");
    }

    #[test]
    fn a_password_without_a_host_is_not_shown() {
        for url in [
            "etcd://app:hidden",
            "etcd://app:hidden/path",
            "etcd://app:hidden?a=b",
            "etcd://app:hidden,b/path",
            "etcd://app:hidden:1/path",
            "etcd://app:1/hidden",
            "redis://app:hidden",
            "app:hidden",
            "etcd:app:hidden",
        ] {
            let error = read(&DataSourceConfig::new(url)).err().expect(url);
            assert!(error.contains("write etcd://HOST:2379"), "{url}: {error}");
            assert!(!error.contains("hidden"), "{url}: {error}");
        }
    }

    #[test]
    fn a_password_without_a_user_is_refused() {
        let with_password = DataSourceConfig::new("etcd://a").password("hidden");
        for config in [DataSourceConfig::new("etcd://:hidden@a"), with_password] {
            let error = read(&config).err().unwrap();
            assert!(error.contains("write etcd://USER:PASSWORD@HOST:2379"), "{error}");
            assert!(!error.contains("hidden"), "{error}");
        }
        let with_user = DataSourceConfig::new("etcd://:p@a").username("u");
        assert_eq!(read(&with_user).unwrap().1.map(|login| login.user).as_deref(), Some("u"));
        assert!(read(&DataSourceConfig::new("etcd://:@a")).unwrap().1.is_none());
    }

    #[test]
    fn the_login_of_the_configuration_comes_before_that_of_the_address() {
        let login = |config: DataSourceConfig| {
            read(&config).unwrap().1.map(|login| (login.user, login.password))
        };
        let text = |a: &str, b: &str| Some((a.to_owned(), b.to_owned()));
        let address = DataSourceConfig::new("etcd://a%40b:p%3aw@c");
        assert_eq!(login(DataSourceConfig::new("etcd://c")), None);
        assert_eq!(login(address.clone()), text("a@b", "p:w"));
        assert_eq!(login(address.username("x").password("y")), text("x", "y"));
    }

    #[test]
    fn encryption_is_never_weaker_than_configured() {
        let of = |url: &str, mode: Option<TlsMode>, cert: bool| {
            let mut config = DataSourceConfig::new(url);
            config.tls_mode = mode;
            config.tls_root_cert = cert.then(|| "/nothing/here.pem".into());
            read(&config).map(drop)
        };
        assert!(of("etcd://a", None, false).is_ok());
        assert!(of("etcds://a", Some(TlsMode::VerifyFull), false).is_ok());
        for (url, mode, cert, advice) in [
            ("etcds://a", Some(TlsMode::Disable), false, "write etcd://"),
            ("etcds://a", Some(TlsMode::Require), false, "verify-full"),
            ("etcd://a", Some(TlsMode::VerifyCa), false, "verify-full"),
            ("etcd://a", None, true, "write etcds://"),
            ("etcds://a", None, true, "/nothing/here.pem"),
        ] {
            let error = of(url, mode, cert).unwrap_err();
            assert!(error.contains(advice), "{error}");
        }
    }
}
