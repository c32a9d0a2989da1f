//! The cluster that a configuration names, and how its nodes are reached.

use std::time::Duration;

use aerospike::ClientPolicy;
use aerospike::policy::AuthMode;
use ekbatan_core::config::{DataSourceConfig, ExposeSecret, TlsMode, decoded};
use ekbatan_lock::{BackendError, LockError, with_port};

/// Maximum time for the server to answer.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// The same, in milliseconds.
pub(crate) const ANSWER_MILLIS: u32 = 5_000;

/// The port of Aerospike for clients.
const PORT: u16 = 3000;

pub(crate) struct Address {
    /// As the client takes them: `host:port`, with commas in between.
    pub(crate) hosts: String,
    pub(crate) namespace: String,
    pub(crate) policy: ClientPolicy,
}

impl Address {
    /// Reads `aerospike://[user:password@]host[:port][,host[:port]]../NAMESPACE[?seed-only=true]`.
    pub(crate) fn of(server: &DataSourceConfig) -> Result<Self, LockError> {
        let shown = server.shown_url();
        let wrong = |why: &str| {
            let message = format!(
                "the address `{shown}` of the locks {why}; write aerospike://HOST:3000/NAMESPACE, \
                 several nodes as aerospike://HOST:3000,HOST:3000/NAMESPACE"
            );
            LockError::Start { source: BackendError::new(message) }
        };
        let rest = match server.url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("aerospike") => rest,
            // Without the usual parts, nothing says where a password is.
            _ => {
                let message = "the address of the locks does not begin with aerospike://; write \
                               aerospike://HOST:3000/NAMESPACE";
                return Err(LockError::Start { source: BackendError::new(message) });
            }
        };
        check_encryption(server)?;
        let (rest, parameters) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, namespace) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (Some(login), hosts),
            None => (None, authority),
        };
        // What stands in the place of a port or a namespace may be a part of a password.
        let cut_off = || {
            let message = "the address of the locks lacks a host, or has a login that ends early or has \
                           no end, or a port that is no number; end the login with `@` and \
                           percent-encode `/`, `?` and `@` within it, or give `username` and `password` \
                           beside the address";
            LockError::Start { source: BackendError::new(message) }
        };
        if namespace.contains('@') || parameters.contains('@') {
            return Err(cut_off());
        }
        let hosts = hosts.split(',').map(|host| with_port(host, PORT));
        let hosts = hosts.collect::<Option<Vec<_>>>().ok_or_else(cut_off)?;
        if namespace.is_empty() || namespace.contains('/') {
            return Err(wrong("names no namespace"));
        }
        let seed_only = match parameters {
            "" | "seed-only=false" => false,
            "seed-only=true" => true,
            _ => return Err(wrong("has other parameters than `seed-only`")),
        };
        let auth_mode = auth_mode(login, server).ok_or_else(|| {
            wrong("comes with a password and no user; give both, or none of them")
        })?;
        let pool = server.maximum_pool_size;
        let policy = ClientPolicy {
            auth_mode,
            timeout: ANSWER_MILLIS,
            connect_timeout: ANSWER_MILLIS,
            max_conns_per_node: pool,
            conn_pools_per_node: 1,
            min_conns_per_node: pool.min(1),
            // Callers repeat what failed by themselves, with pauses.
            max_error_rate: 0,
            seed_only_cluster: seed_only,
            application_id: Some(server.application_name.clone()),
            ..ClientPolicy::default()
        };
        Ok(Self { hosts: hosts.join(","), namespace: namespace.to_owned(), policy })
    }
}

/// The login of the configuration, or that of the address. `None` for a password without a user.
fn auth_mode(in_address: Option<&str>, server: &DataSourceConfig) -> Option<AuthMode> {
    let (user, password) =
        in_address.map_or(("", ""), |login| login.split_once(':').unwrap_or((login, "")));
    let user = server.username.clone().unwrap_or_else(|| decoded(user));
    let password = match &server.password {
        Some(password) => password.expose_secret().to_owned(),
        None => decoded(password),
    };
    match (user.is_empty(), password.is_empty()) {
        (true, true) => Some(AuthMode::None),
        (true, false) => None,
        (false, _) => Some(AuthMode::Internal(user, password)),
    }
}

fn check_encryption(server: &DataSourceConfig) -> Result<(), LockError> {
    let asked =
        matches!(server.tls_mode, Some(TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull));
    if asked || server.tls_root_cert.is_some() {
        let reason = "Aerospike: locks in Aerospike have no encrypted connections; remove tls-mode \
                      and tls-root-cert, and keep the traffic within a network that is safe";
        return Err(LockError::Unsafe { reason: reason.to_owned() });
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
    fn nodes_are_separated_by_commas_and_have_a_usual_port() {
        for (url, hosts) in [
            ("aerospike://a/ns", "a:3000"),
            ("aerospike://a:1,b,[::1]:2/ns", "a:1,b:3000,[::1]:2"),
            ("AEROSPIKE://u:p@a/ns?seed-only=true", "a:3000"),
        ] {
            let address = read(url).unwrap();
            assert_eq!((&*address.hosts, &*address.namespace), (hosts, "ns"), "{url}");
            assert_eq!(address.policy.seed_only_cluster, url.contains("seed-only"));
        }
    }

    #[test]
    fn a_wrong_address_is_refused_without_its_password() {
        for (url, said) in [
            ("http://u:secret@a/ns", "does not begin with aerospike"),
            ("aerospike://u:secret@a", "names no namespace"),
            ("aerospike://u:secret@a/", "names no namespace"),
            ("aerospike://u:secret@a/ns/set", "names no namespace"),
            ("aerospike://u:secret@/ns", "lacks a host"),
            ("aerospike://u:pass@:3000/ns", "lacks a host"),
            ("aerospike://u:pass@a,/ns", "lacks a host"),
            ("aerospike://:secret@a/ns", "no user"),
            ("aerospike://u:secret@a/ns?tls=true", "other parameters"),
        ] {
            let error = read(url).err().unwrap();
            assert!(error.contains(said) && !error.contains("secret"), "{url}: {error}");
        }
    }

    #[test]
    fn a_login_that_is_cut_off_is_refused_without_its_secret() {
        for url in [
            "aerospike://u:secret",
            "aerospike://u:secret/ns",
            "aerospike://u:secret,b:3000/ns",
            "aerospike://u:se/secret@a/ns",
            "aerospike://u:12/secret@a",
            "aerospike://u:secret?x@a/ns",
            "aerospike://u:12?secret@a/ns",
            "aerospike://a:0/secret",
        ] {
            let error = read(url).err().expect(url);
            assert!(error.contains("percent-encode") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn a_password_without_a_user_is_refused() {
        let mut config = DataSourceConfig::new("aerospike://a/ns");
        config.password = Some("secret".to_owned().into());
        for user in [None, Some(String::new())] {
            config.username = user;
            let error = Address::of(&config).err().unwrap().to_string();
            assert!(error.contains("no user") && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn the_login_is_that_of_the_configuration_or_of_the_address() {
        let mut config = DataSourceConfig::new("aerospike://u%40x:p%2Fq@a/ns");
        let login = |config: &DataSourceConfig| Address::of(config).unwrap().policy.auth_mode;
        assert_eq!(login(&config), AuthMode::Internal("u@x".to_owned(), "p/q".to_owned()));
        config.username = Some("app".to_owned());
        config.password = Some("secret".to_owned().into());
        assert_eq!(login(&config), AuthMode::Internal("app".to_owned(), "secret".to_owned()));
        assert_eq!(login(&DataSourceConfig::new("aerospike://a/ns")), AuthMode::None);
    }

    #[test]
    fn encryption_is_refused_rather_than_left_out() {
        let mut config = DataSourceConfig::new("aerospike://a/ns");
        config.tls_mode = Some(TlsMode::Prefer);
        assert!(Address::of(&config).is_ok());
        for mode in [TlsMode::Require, TlsMode::VerifyCa, TlsMode::VerifyFull] {
            config.tls_mode = Some(mode);
            assert!(Address::of(&config).err().unwrap().to_string().contains("tls-mode"));
        }
    }
}
