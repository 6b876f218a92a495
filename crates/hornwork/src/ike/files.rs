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

/// The certificates of this end and of the authorities, and the key; PEM, one block in each value.
#[derive(Clone)]
pub(crate) struct IkeCertificate {
    pub(super) own: Vec<u8>,
    /// Certificates of the authorities between that of this end and one that peers trust.
    pub(super) intermediate: Vec<Vec<u8>>,
    pub(super) key: Zeroizing<Vec<u8>>,
    pub(super) authorities: Vec<Vec<u8>>,
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

/// The parts of a PEM file that begin with the line `-----BEGIN ...LABEL-----`, each up to the next one. The daemon
/// reads the first block of a value alone: of a file with the former and the next authority, with a chain, or with the
/// parameters of a curve before the key, it would take that one, or refuse it.
fn blocks<'t>(pem: &'t [u8], label: &str) -> Vec<&'t [u8]> {
    let end = format!("{label}-----");
    let (mut starts, mut at) = (Vec::new(), 0);
    for line in pem.split_inclusive(|&byte| byte == b'\n') {
        let text = line.trim_ascii_end();
        if text.starts_with(b"-----BEGIN ") && text.ends_with(end.as_bytes()) {
            starts.push(at);
        }
        at += line.len();
    }
    let ends = starts.iter().copied().skip(1).chain([pem.len()]);
    let parts = starts.iter().zip(ends);
    parts
        .filter_map(|(&start, end)| pem.get(start..end))
        .collect()
}

/// The certificates of a PEM file, each of its own.
fn certificates(path: &Path) -> Result<Vec<Vec<u8>>, FileMistake> {
    let text = read_file(path)?;
    let found = blocks(&text, " CERTIFICATE");
    Ok(found.into_iter().map(<[u8]>::to_vec).collect())
}

/// The private key of a PEM file.
fn private_key(path: &Path) -> Result<Zeroizing<Vec<u8>>, FileMistake> {
    let text = read_file(path)?;
    // Without such a line the file is left to the daemon's judgement.
    let found = blocks(&text, " PRIVATE KEY").into_iter().next();
    Ok(Zeroizing::new(found.unwrap_or(&text).to_vec()))
}

fn certificate(ike: &IkeSpec) -> Result<Option<IkeCertificate>, FileMistake> {
    let Some((files, authority)) = &ike.certificate else {
        return Ok(None);
    };
    // They are read here so that a mistake is found before the daemon finds it.
    let bad = |error: net::tls::CredentialError| (error.to_string(), error.remedy.clone());
    Identity::read(files.chain.path(), files.key.path()).map_err(bad)?;
    Anchors::read(authority.path()).map_err(bad)?;
    let mut chain = certificates(files.chain.path())?.into_iter();
    Ok(Some(IkeCertificate {
        own: chain.next().unwrap_or_default(),
        intermediate: chain.collect(),
        key: private_key(files.key.path())?,
        authorities: certificates(authority.path())?,
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
                    authorities: certificate.authorities.clone(),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A file as openssl and operators write it: texts between blocks, and several of them.
    #[test]
    fn each_block_of_a_file_is_one_value() {
        let block = |label: &str, body: &str| {
            format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\r\n")
        };
        let chain = format!(
            "{}subject=old\n{}issuer=new\n{}",
            block("PRIVATE KEY", "a2V5"),
            block("CERTIFICATE", "b2xk"),
            block("CERTIFICATE", "bmV3")
        );
        let found = blocks(chain.as_bytes(), " CERTIFICATE");
        assert_eq!(found.len(), 2);
        for (part, body) in found.iter().zip(["b2xk", "bmV3"]) {
            let begin = format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END");
            assert!(part.starts_with(begin.as_bytes()), "{part:?}");
        }
        for label in ["PRIVATE KEY", "EC PRIVATE KEY"] {
            let key = block("EC PARAMETERS", "cA==") + &block(label, "a2V5");
            let [only] = blocks(key.as_bytes(), " PRIVATE KEY")[..] else {
                panic!("{key}");
            };
            assert!(only.starts_with(format!("-----BEGIN {label}").as_bytes()));
        }
        assert!(blocks(b"no PEM", " CERTIFICATE").is_empty());
    }
}
