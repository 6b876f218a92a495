//! The files of a key exchange: shared secrets, and certificates with the key.

use super::plan::ExchangePlan;
use crate::secret_file;
use config::IkeSpec;
use net::tls::{Anchors, Identity};
use protect::ike::IkeAuthentication;
use std::path::Path;
use zeroize::Zeroizing;

/// A mistake, and its remedy.
type FileMistake = (String, String);

/// The certificates of this end and of the authority, and the key; PEM.
#[derive(Clone)]
pub(crate) struct IkeCertificate {
    pub(super) own: Vec<u8>,
    pub(super) key: Zeroizing<Vec<u8>>,
    pub(super) authority: Vec<u8>,
}

/// The proofs of identity of both ends.
#[derive(Clone)]
pub(crate) struct IkeFiles {
    pub(super) certificate: Option<IkeCertificate>,
    /// By tunnel.
    pub(super) authentications: Vec<IkeAuthentication>,
}

impl core::fmt::Debug for IkeFiles {
    /// Omits the secrets.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("IkeFiles").finish_non_exhaustive()
    }
}

/// strongSwan reads texts that begin with `0x` and `0s` as other notations of bytes: at both ends they would be
/// different secrets.
fn is_secret(text: &str) -> bool {
    let is_notation = text.starts_with("0x") || text.starts_with("0s");
    !is_notation
        && text
            .bytes()
            .all(|byte| byte == b' ' || byte.is_ascii_graphic())
}

fn read_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileMistake> {
    let failed = |error: std::io::Error| {
        let what = format!("{} cannot be read: {error}", path.display());
        let otherwise = || "correct the name".to_owned();
        (what, secret_file::remedy_for(path, &error, otherwise))
    };
    std::fs::read(path).map(Zeroizing::new).map_err(failed)
}

fn certificate(ike: &IkeSpec) -> Result<Option<IkeCertificate>, FileMistake> {
    let Some((files, authority)) = &ike.certificate else {
        return Ok(None);
    };
    // They are read here so that a mistake is found before the daemon finds it.
    let bad = |error: net::tls::CredentialError| (error.to_string(), error.remedy.clone());
    Identity::read(files.chain.path(), files.key.path()).map_err(bad)?;
    Anchors::read(authority.path()).map_err(bad)?;
    Ok(Some(IkeCertificate {
        own: read_file(files.chain.path())?.to_vec(),
        key: read_file(files.key.path())?,
        authority: read_file(authority.path())?.to_vec(),
    }))
}

impl IkeFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// The mistake, and its remedy.
    pub(crate) fn read(plan: &ExchangePlan) -> Result<IkeFiles, FileMistake> {
        let certificate = certificate(&plan.ike)?;
        let mut authentications = Vec::with_capacity(plan.tunnels.len());
        for tunnel in &plan.tunnels {
            let authentication = match (&tunnel.ike.secret_file, &certificate) {
                (Some(file), _) => {
                    let form = "printable characters of ASCII that do not begin with 0x or 0s";
                    let secret = secret_file::read(file.path(), is_secret, form)?;
                    IkeAuthentication::Secret(Zeroizing::new(secret.into_bytes()))
                }
                (None, Some(certificate)) => IkeAuthentication::Certificates {
                    own: certificate.own.clone(),
                    authority: certificate.authority.clone(),
                },
                (None, None) => {
                    let what = format!("tunnel {} has no secret", tunnel.name);
                    return Err((what, "write secret_file".to_owned()));
                }
            };
            authentications.push(authentication);
        }
        Ok(IkeFiles {
            certificate,
            authentications,
        })
    }
}
