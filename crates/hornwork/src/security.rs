//! Certificates and keys: read from the files that the configuration names, given to the driver, watched for their end.

use crate::control::Token;
use border::config::{CertificateFiles, ClientProof, Config, FilePath, Mistake, TlsVersion, Trust};
use engine::{Note, Transport};
use net::tls::{
    Anchors, ClientSettings, CredentialError, Identity, Oldest, Proof, Security, ServerSettings,
    WebSocketSettings, date, wall_clock,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const DAY: i64 = 86_400;

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    /// For the driver.
    pub security: Security,
    /// Our certificates by file, each once.
    certificates: BTreeMap<PathBuf, Identity>,
    /// What requests to control have to bring.
    pub token: Option<Token>,
}

/// Collects what is wrong with files, each mistake at the line that names the file.
struct Reader<'c> {
    text: &'c str,
    file: &'c str,
    mistakes: Vec<Mistake>,
    certificates: BTreeMap<PathBuf, Identity>,
    system: Option<Result<Anchors, CredentialError>>,
}

impl Reader<'_> {
    fn note(&mut self, place: &FilePath, error: &CredentialError) {
        self.mistakes.push(place.mistake(
            self.text,
            self.file,
            error.to_string(),
            error.remedy.clone(),
        ));
    }

    fn identity(&mut self, files: &CertificateFiles) -> Option<Identity> {
        match Identity::read(files.chain.path(), files.key.path()) {
            Ok(identity) => {
                self.certificates
                    .insert(files.chain.path().to_owned(), identity.clone());
                self.validity(files, &identity);
                Some(identity)
            }
            Err(error) => {
                let about_key = error.file == files.key.path();
                let place = if about_key { &files.key } else { &files.chain };
                self.note(place, &error);
                None
            }
        }
    }

    /// A certificate that nobody would take is a mistake; one that ends soon is not.
    fn validity(&mut self, files: &CertificateFiles, identity: &Identity) {
        let now = wall_clock();
        let known = identity.identities();
        let problem = if known.not_after < now {
            format!("the certificate expired on {}", date(known.not_after))
        } else if known.not_before > now {
            format!(
                "the certificate is not valid before {}",
                date(known.not_before)
            )
        } else {
            return;
        };
        self.mistakes.push(files.chain.mistake(
            self.text,
            self.file,
            format!("{}: {problem}", files.chain.path().display()),
            "put a certificate that is valid now into the file".to_owned(),
        ));
    }

    fn anchors(&mut self, trust: &Trust) -> Option<Anchors> {
        let (place, read) = match trust {
            Trust::File(place) => (place, Anchors::read(place.path())),
            Trust::System(place) => {
                let read = self.system.get_or_insert_with(Anchors::system);
                (place, read.clone())
            }
        };
        match read {
            Ok(anchors) => Some(anchors),
            Err(error) => {
                self.note(place, &error);
                None
            }
        }
    }
}

fn oldest(version: TlsVersion) -> Oldest {
    match version {
        TlsVersion::Tls12 => Oldest::Tls12,
        TlsVersion::Tls13 => Oldest::Tls13,
    }
}

impl Loaded {
    /// Reads every file that `config` names; `text` is its text and `file` its name, for mistakes. Sessions of `before` can
    /// be resumed.
    ///
    /// # Errors
    /// What is wrong with which file.
    pub fn read(
        config: &Config,
        text: &str,
        file: &str,
        before: Option<&Loaded>,
    ) -> Result<Loaded, Vec<Mistake>> {
        let mut reader = Reader {
            text,
            file,
            mistakes: Vec::new(),
            certificates: BTreeMap::new(),
            system: None,
        };
        let mut security = Security::default();
        let mut impossible = Vec::new();
        for interface in &config.interfaces {
            let settings = interface
                .tls
                .as_ref()
                .and_then(|tls| server(&mut reader, tls));
            for listen in &interface.listen {
                let websocket = matches!(listen.transport, Transport::Ws | Transport::Wss);
                if websocket {
                    security.websocket(
                        listen.address,
                        WebSocketSettings {
                            origins: interface.websocket.origins.clone(),
                            hosts: interface.websocket.hosts.clone(),
                            protocol: None,
                        },
                    );
                }
                if matches!(listen.transport, Transport::Tls | Transport::Wss)
                    && let Some(settings) = &settings
                {
                    let before = before.map(|before| &before.security);
                    let set = security.server(listen.address, websocket, settings.clone(), before);
                    impossible.extend(set.err());
                }
            }
        }
        for listen in config.node.iter().flat_map(|node| &node.listen) {
            if listen.transport == Transport::Ws {
                let settings = WebSocketSettings {
                    protocol: Some(wire::ng::WEBSOCKET_PROTOCOL),
                    ..WebSocketSettings::default()
                };
                security.websocket(listen.address, settings);
            }
        }
        for trunk in &config.trunks {
            let Some(tls) = &trunk.tls else { continue };
            let anchors = reader.anchors(&tls.ca);
            let own = tls.certificate.as_ref();
            let identity = own.and_then(|own| reader.identity(own));
            if let Some(anchors) = anchors {
                let settings = ClientSettings {
                    anchors: Some(anchors),
                    identity,
                    pins: tls.pins.clone(),
                    oldest: oldest(tls.oldest),
                };
                impossible.extend(security.client(&trunk.name, settings).err());
            }
        }
        // Redirections and transfers lead to those whom the system's authorities vouch for; without any, nowhere by TLS.
        if let Ok(anchors) = reader.system.get_or_insert_with(Anchors::system).as_ref() {
            let settings = ClientSettings {
                anchors: Some(anchors.clone()),
                identity: None,
                pins: Vec::new(),
                oldest: Oldest::Tls12,
            };
            impossible.extend(security.client("", settings).err());
        }
        // What was read well fits together; where it does not after all, nothing is started with half of it.
        for message in impossible {
            reader.mistakes.push(Mistake {
                file: file.to_owned(),
                line: 1,
                column: 1,
                span: 0..0,
                message: format!("TLS cannot be set up: {message}"),
                remedy: "compare the files with docs/configuration.md, and report it where they are right"
                    .to_owned(),
            });
        }
        let token = config.control.as_ref().and_then(|control| {
            let place = control.token.as_ref()?;
            let read = Token::read(place.path());
            let failed = |(message, remedy): (String, String)| {
                let mistake = place.mistake(text, file, message, remedy);
                reader.mistakes.push(mistake);
            };
            read.map_err(failed).ok()
        });
        match reader.mistakes.is_empty() {
            true => Ok(Loaded {
                security,
                token,
                certificates: reader.certificates,
            }),
            false => {
                reader.mistakes.sort_by_key(|mistake| mistake.span.start);
                reader.mistakes.dedup();
                Err(reader.mistakes)
            }
        }
    }

    /// Events of certificates that were not in use `before`, or have changed since.
    pub fn news(&self, before: Option<&Loaded>) -> Vec<Note> {
        self.certificates
            .iter()
            .filter(|(file, identity)| {
                before
                    .and_then(|before| before.certificates.get(*file))
                    .is_none_or(|old| old.fingerprint() != identity.fingerprint())
            })
            .map(|(file, identity)| Note::CertificateLoaded {
                certificate: file.display().to_string(),
                names: identity.identities().list(),
                until: date(identity.identities().not_after),
            })
            .collect()
    }

    /// Events of certificates that must be renewed, as of now.
    pub fn alarms(&self) -> Vec<Note> {
        let now = wall_clock();
        self.certificates
            .iter()
            .filter_map(|(file, identity)| alarm(file, identity.identities(), now))
            .collect()
    }
}

/// The alarm of one certificate at `now`, seconds since 1970.
fn alarm(file: &Path, identities: &net::tls::Identities, now: i64) -> Option<Note> {
    let left = identities.not_after - now;
    let state = match left {
        ..0 => "expired",
        _ if left < 7 * DAY => "urgent",
        _ if left < 30 * DAY => "soon",
        _ => return None,
    };
    Some(Note::CertificateExpires {
        certificate: file.display().to_string(),
        names: identities.list(),
        until: date(identities.not_after),
        days: u64::try_from(left / DAY).unwrap_or(0),
        state: state.to_owned(),
    })
}

fn server(reader: &mut Reader<'_>, tls: &border::config::ListenTls) -> Option<ServerSettings> {
    let identities: Vec<Identity> = tls
        .certificates
        .iter()
        .filter_map(|files| reader.identity(files))
        .collect();
    let anchors = tls
        .client_ca
        .as_ref()
        .and_then(|trust| reader.anchors(trust));
    let proof = match (tls.clients, anchors) {
        (ClientProof::None, _) => Proof::None,
        (ClientProof::Request, Some(anchors)) => Proof::Request(anchors),
        (ClientProof::Require, Some(anchors)) => Proof::Require(anchors),
        // The mistake is noted: without an authority nobody could be let in.
        (_, None) => return None,
    };
    Some(ServerSettings {
        identities,
        proof,
        oldest: oldest(tls.oldest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_told_thirty_days_and_seven_days_before_their_end_and_after_it() {
        let identities = net::tls::Identities {
            domains: vec!["example.com".to_owned()],
            not_after: 100 * DAY,
            ..Default::default()
        };
        for (now, want) in [
            (69 * DAY, None),
            (70 * DAY, None),
            (70 * DAY + 1, Some(("soon", 29))),
            (93 * DAY, Some(("soon", 7))),
            (93 * DAY + 1, Some(("urgent", 6))),
            (100 * DAY, Some(("urgent", 0))),
            (100 * DAY + 1, Some(("expired", 0))),
            (200 * DAY, Some(("expired", 0))),
        ] {
            let told = alarm(Path::new("x.pem"), &identities, now);
            let told = told.map(|note| match note {
                Note::CertificateExpires { state, days, .. } => (state, days),
                other => panic!("{other:?}"),
            });
            let want = want.map(|(state, days)| (state.to_owned(), days));
            assert_eq!(told, want, "{now}");
        }
    }
}
