//! The deployment that a configuration names, and how its members are reached.
//!
//! Invariants: a connection is never less encrypted than configured. Parameters of the address that
//! would make locks unsafe are refused, not overruled.

use std::time::Duration;

use ekbatan_core::config::{DataSourceConfig, TlsMode};
use ekbatan_lock::{BackendError, LockError};
use mongodb::options::{
    Acknowledgment, ClientOptions, ReadPreference, SelectionCriteria, Tls, TlsOptions,
};

use crate::client::ANSWER;
use crate::login::Login;

/// How long to look for a primary. Shorter than the time to answer, so that the error says what was
/// missing.
const SELECTION: Duration = Duration::from_secs(4);

/// How often the members are asked who is primary while nothing fails.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The database of an address that names none.
const DATABASE: &str = "ekbatan";

pub(crate) struct Address {
    pub(crate) options: ClientOptions,
    pub(crate) database: String,
}

impl Address {
    pub(crate) async fn of(server: &DataSourceConfig) -> Result<Self, LockError> {
        if scheme(&server.url).eq_ignore_ascii_case("mongodb+srv") {
            return Err(refused(
                "the address begins with mongodb+srv://, which names the members by the DNS; write \
                 mongodb://HOST:27017,HOST:27017/DATABASE?replicaSet=NAME",
            ));
        }
        let login = Login::of(server)?;
        let mut options = ClientOptions::parse(login.address()).await.map_err(|error| {
            let message = format!(
                "the address `{}` of the locks cannot be used ({error}); write \
                 mongodb://HOST:27017/DATABASE, several members as \
                 mongodb://HOST:27017,HOST:27017/DATABASE?replicaSet=NAME",
                server.shown_url()
            );
            LockError::Start { source: BackendError::new(message) }
        })?;
        check(&options)?;
        options.tls = encryption(options.tls.take(), server)?;
        login.apply_to(&mut options);
        let database = options.default_database.take().unwrap_or_else(|| DATABASE.to_owned());
        // Each command says by itself what has to be confirmed.
        options.write_concern = None;
        options.read_concern = None;
        options.selection_criteria =
            Some(SelectionCriteria::ReadPreference(ReadPreference::Primary));
        // Only the caller knows whether a request may be repeated.
        options.retry_writes = Some(false);
        options.retry_reads = Some(false);
        options.server_selection_timeout = Some(SELECTION);
        options.connect_timeout = Some(ANSWER);
        options.heartbeat_freq = Some(HEARTBEAT);
        options.max_pool_size = Some(u32::try_from(server.maximum_pool_size).unwrap_or(u32::MAX));
        options.app_name = Some(server.application_name.clone());
        Ok(Self { options, database })
    }
}

fn scheme(url: &str) -> &str {
    url.split(':').next().unwrap_or_default()
}

fn refused(reason: &str) -> LockError {
    LockError::Unsafe { reason: format!("MongoDB: {reason}") }
}

/// Rejects parameters that contradict what locks need.
fn check(options: &ClientOptions) -> Result<(), LockError> {
    if let Some(concern) = &options.write_concern {
        if concern.w.as_ref().is_some_and(|w| *w != Acknowledgment::Majority) {
            return Err(refused(
                "the address has a `w` other than `majority`, and a grant that fewer members know \
                 is lost with them; remove `w`",
            ));
        }
        if concern.journal == Some(false) {
            return Err(refused(
                "the address has `journal=false`, and a grant that is in no journal is lost in a \
                 crash; remove `journal`",
            ));
        }
    }
    let primary = |criteria: &SelectionCriteria| {
        matches!(criteria, SelectionCriteria::ReadPreference(ReadPreference::Primary))
    };
    if options.selection_criteria.as_ref().is_some_and(|criteria| !primary(criteria)) {
        return Err(refused(
            "the address has a `readPreference` other than `primary`, and other members lag behind; \
             remove `readPreference`",
        ));
    }
    if options.load_balanced == Some(true) {
        return Err(refused(
            "the address has `loadBalanced=true`, and there are several mongos with clocks of their \
             own behind a balancer; name the members of one replica set",
        ));
    }
    Ok(())
}

/// How to encrypt. A certificate is always checked in full.
fn encryption(
    by_address: Option<Tls>,
    server: &DataSourceConfig,
) -> Result<Option<Tls>, LockError> {
    let by_address = match by_address {
        Some(Tls::Enabled(options)) => Some(options),
        _ => None,
    };
    if by_address.as_ref().is_some_and(|tls| tls.allow_invalid_certificates == Some(true)) {
        return Err(refused(
            "the address accepts any certificate; remove `tlsInsecure` and \
             `tlsAllowInvalidCertificates`, and name the file of your authority in tls-root-cert",
        ));
    }
    match (server.tls_mode, &by_address) {
        (Some(TlsMode::Disable), Some(_)) => {
            return Err(refused(
                "tls-mode is `disable` and the address has `tls=true`; keep one of the two",
            ));
        }
        (Some(mode @ (TlsMode::Require | TlsMode::VerifyCa)), _) => {
            let mode = if mode == TlsMode::Require { "require" } else { "verify-ca" };
            return Err(refused(&format!(
                "tls-mode is `{mode}`, and locks in MongoDB check certificates in full; write \
                 `verify-full`, with the file of the authority as tls-root-cert if it is your own"
            )));
        }
        (None | Some(TlsMode::Disable | TlsMode::Prefer), None) => {
            return if server.tls_root_cert.is_some() {
                Err(refused(
                    "tls-root-cert is given and the connection is not encrypted; write `tls=true` in \
                     the address, or tls-mode: verify-full",
                ))
            } else {
                Ok(None)
            };
        }
        _ => {}
    }
    let mut tls = by_address.unwrap_or_else(|| TlsOptions::builder().build());
    if let Some(file) = &server.tls_root_cert {
        tls.ca_file_path = Some(file.clone());
    }
    Ok(Some(Tls::Enabled(tls)))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(config: &DataSourceConfig) -> Result<Address, String> {
        Address::of(config).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn the_database_and_the_login_are_those_of_the_address() {
        let address = read(&DataSourceConfig::new("mongodb://u:p@a:1,b/locks")).await.unwrap();
        assert_eq!((&*address.database, address.options.hosts.len()), ("locks", 2));
        let login = address.options.credential.unwrap();
        assert_eq!((login.username.as_deref(), login.password.as_deref()), (Some("u"), Some("p")));
        let address = read(&DataSourceConfig::new("mongodb://a")).await.unwrap();
        assert_eq!(address.database, DATABASE);
        assert!(address.options.credential.is_none());
    }

    #[tokio::test]
    async fn what_would_make_locks_unsafe_is_refused_by_name() {
        for (url, said) in [
            ("mongodb://a/d?w=1", "remove `w`"),
            ("mongodb://a/d?w=0", "remove `w`"),
            ("mongodb://a/d?w=majority&journal=false", "remove `journal`"),
            ("mongodb://a/d?readPreference=secondary", "remove `readPreference`"),
            ("mongodb://a/d?readPreference=primaryPreferred", "remove `readPreference`"),
            ("mongodb://a/d?loadBalanced=true", "loadBalanced"),
            ("mongodb+srv://u:secret@a.example/d", "mongodb+srv"),
            ("mongodb://u:secret@/d", "cannot be used"),
            ("mongodb://u:secret@a/d?tls=true&tlsInsecure=true", "accepts any certificate"),
        ] {
            let error = read(&DataSourceConfig::new(url)).await.err().unwrap();
            assert!(error.contains(said) && !error.contains("secret"), "{url}: {error}");
        }
        assert!(
            read(&DataSourceConfig::new("mongodb://a/d?w=majority&journal=true")).await.is_ok()
        );
    }

    #[tokio::test]
    async fn encryption_is_full_or_absent() {
        let tls = async |url: &str, mode: Option<TlsMode>| {
            let mut config = DataSourceConfig::new(url);
            config.tls_mode = mode;
            read(&config).await.map(|address| address.options.tls.is_some())
        };
        assert_eq!(tls("mongodb://a", None).await, Ok(false));
        assert_eq!(tls("mongodb://a/?tls=true", None).await, Ok(true));
        assert_eq!(tls("mongodb://a", Some(TlsMode::VerifyFull)).await, Ok(true));
        for (url, mode) in [
            ("mongodb://a/?tls=true", TlsMode::Disable),
            ("mongodb://a", TlsMode::Require),
            ("mongodb://a", TlsMode::VerifyCa),
        ] {
            assert!(tls(url, Some(mode)).await.unwrap_err().contains("tls-mode is"), "{mode:?}");
        }
    }
}
