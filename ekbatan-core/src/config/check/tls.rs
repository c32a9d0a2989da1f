//! The rules for encryption.

use crate::config::address::{Parts, parameters};
use crate::config::data_source::{DataSourceConfig, TlsMode};
use crate::config::dialect::Dialect;
use crate::config::findings::Findings;
use crate::config::key_path::KeyPath;
use crate::config::lock_config::LockProviderKind;

/// The parameters of an address that name root certificates.
const ROOTS: [&str; 4] = ["sslrootcert", "ssl-root-cert", "sslca", "ssl-ca"];

/// Root certificates without a mode that verifies are an error: the drivers would not even read the
/// file. Locks without an address of their own have the address and the mode of the `primary`.
pub(super) fn check(
    config: &DataSourceConfig,
    primary: Option<&DataSourceConfig>,
    at: &KeyPath,
    findings: &mut Findings,
) {
    let place = if config.tls_root_cert.is_some() {
        at.key("tls-root-cert")
    } else if parameters(Parts::of(&config.url).query).any(|(name, _)| ROOTS.contains(&name)) {
        at.key("url")
    } else {
        return;
    };
    let server = primary.filter(|_| config.url.trim().is_empty()).unwrap_or(config);
    if matches!(server.dialect(), None | Some(Dialect::Sqlite))
        || config.locks.provider == Some(LockProviderKind::InProcess)
        || findings.has(&at.key("tls-mode"))
    {
        return;
    }
    let verifies = match config.tls_mode.or(server.tls_mode) {
        Some(mode) => matches!(mode, TlsMode::VerifyCa | TlsMode::VerifyFull),
        None => address_verifies(&server.url),
    };
    if !verifies {
        let message = "names root certificates, and the server's certificate is not verified; write `tls-mode: verify-full` if it is to be signed by one of them";
        findings.add(&place, message);
    }
}

fn address_verifies(url: &str) -> bool {
    let modes =
        parameters(Parts::of(url).query).filter(|(name, _)| ["sslmode", "ssl-mode"].contains(name));
    // The drivers apply the last of several.
    modes.last().is_some_and(|(_, mode)| {
        let mode = mode.to_ascii_lowercase().replace('_', "-");
        ["verify-ca", "verify-full", "verify-identity"].contains(&mode.as_str())
    })
}
