//! Certificates made on the spot.
#![allow(dead_code)] // each test takes what it needs

use rcgen::{CertificateParams, CertifiedIssuer, DnType, KeyPair, SanType};
use std::path::{Path, PathBuf};

/// An authority that writes files into a folder.
pub struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// One of this name; its certificate is `NAME.pem`.
    pub fn new(folder: &Path, name: &str) -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("authority");
        std::fs::write(folder.join(format!("{name}.pem")), issuer.pem()).expect("file");
        Authority {
            folder: folder.to_owned(),
            issuer,
        }
    }

    /// A certificate for `name` and its SIP URI in `FILE.pem`, its key in `FILE.key`.
    pub fn issue(&self, file: &str, name: &str) {
        self.issue_until(file, name, 2099);
    }

    /// The same, valid until the end of a year.
    pub fn issue_until(&self, file: &str, name: &str, year: i32) {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        params.subject_alt_names = vec![
            SanType::URI(format!("sip:{name}").try_into().expect("URI")),
            SanType::DnsName(name.try_into().expect("name")),
        ];
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().expect("key");
        let certificate = params.signed_by(&key, &self.issuer).expect("certificate");
        self.write(file, &certificate.pem(), &key.serialize_pem());
    }

    fn write(&self, file: &str, certificate: &str, key: &str) {
        std::fs::write(self.folder.join(format!("{file}.pem")), certificate).expect("file");
        std::fs::write(self.folder.join(format!("{file}.key")), key).expect("file");
    }
}
