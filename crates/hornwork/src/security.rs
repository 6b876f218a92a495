//! Certificates and keys: read from the configured files, passed to the driver, and monitored for expiry.

use crate::alarms::AlarmFiles;
use crate::bearer_token::{BearerToken, is_token};
use crate::gateway::GatewayKeys;
use crate::http_client::HttpCredentials;
use crate::secret_file;
use config::{
    CertificateFiles, ClientAuthentication, Config, FilePath, Mistake, SyslogTransport, TlsVersion,
    Trust,
};
use engine::{EventKind, Transport};
use net::tls::{
    Anchors, ClientAuth, ClientSettings, CredentialError, Identity, MinimumVersion, Security,
    ServerSettings, WebSocketSettings, date, wall_clock,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::rustls::{ClientConfig, ServerConfig};

const DAY_S: i64 = 86_400;
/// State of an expired certificate in `certificate_expires`.
pub(crate) const EXPIRED: &str = "expired";

/// The files of a configuration.
#[derive(Clone, Debug, Default)]
pub struct LoadedFiles {
    /// TLS settings for the driver.
    pub security: Security,
    /// Our certificates by file, each once.
    certificates: BTreeMap<PathBuf, Identity>,
    /// Token of control requests.
    pub token: Option<BearerToken>,
    /// TLS settings of the web console.
    pub(crate) console: Option<Arc<ServerConfig>>,
    /// Secret and TLS settings of the login by OpenID Connect.
    pub(crate) oidc: HttpCredentials,
    /// Secret and TLS settings of the collector of traces.
    pub(crate) traces: HttpCredentials,
    /// Secrets and TLS settings of the receivers of alarms.
    pub(crate) alarms: AlarmFiles,
    /// Keys of the IPsec gateway.
    pub(crate) gateway: Option<GatewayKeys>,
    /// Certificates that were accepted outside of the period of their validity.
    pub(crate) warnings: Vec<Mistake>,
}

/// Reads files and collects mistakes, each at the line that names the file.
struct FileChecker<'c> {
    text: &'c str,
    file: &'c str,
    /// The files in use; none at a start and for `hornwork check`.
    before: Option<&'c LoadedFiles>,
    mistakes: Vec<Mistake>,
    warnings: Vec<Mistake>,
    certificates: BTreeMap<PathBuf, Identity>,
    system: Option<Result<Anchors, CredentialError>>,
}

impl FileChecker<'_> {
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

    /// A certificate that has expired or is not valid yet is a warning, and a mistake only where a reload would put it
    /// in the place of a valid one. It is no reason to stay down or to refuse other changes: the border before went on
    /// with it, calls without TLS need none, and a machine without a battery has a wrong clock until it is set over the
    /// network. `check` has the rule of the start, so that an accepted file starts.
    fn validity(&mut self, files: &CertificateFiles, identity: &Identity) {
        let now = wall_clock();
        let known = identity.identities();
        let (problem, remedy) = if known.not_after < now {
            let until = date(known.not_after);
            (
                format!("the certificate expired on {until}"),
                "replace it by a valid certificate",
            )
        } else if known.not_before > now {
            let from = date(known.not_before);
            (
                format!("the certificate is not valid before {from}"),
                "set the clock of this machine, or replace it by a valid certificate",
            )
        } else {
            return;
        };
        let path = files.chain.path();
        let in_use = self.before.and_then(|before| before.certificates.get(path));
        let replaces_valid = in_use.is_some_and(|old| {
            let old = old.identities();
            (old.not_before..=old.not_after).contains(&now)
        });
        let effect = match replaces_valid {
            true => "the one in use is valid",
            false => "peers refuse it",
        };
        let message = format!("{}: {problem}, {effect}", path.display());
        let finding = files
            .chain
            .mistake(self.text, self.file, message, remedy.to_owned());
        if replaces_valid {
            self.mistakes.push(finding);
        } else if self
            .warnings
            .iter()
            .all(|one| one.message != finding.message)
        {
            self.warnings.push(finding);
        }
    }

    /// A secret in a file of its own.
    fn secret(
        &mut self,
        place: &FilePath,
        is_good: impl Fn(&str) -> bool,
        form: &str,
    ) -> Option<String> {
        match secret_file::read(place.path(), is_good, form) {
            Ok(secret) => Some(secret),
            Err((message, remedy)) => {
                let mistake = place.mistake(self.text, self.file, message, remedy);
                self.mistakes.push(mistake);
                None
            }
        }
    }

    /// A bearer token in a file of its own.
    fn token(&mut self, place: Option<&FilePath>) -> Option<String> {
        self.secret(place?, is_token, "letters, digits and - . _ ~ + / =")
    }

    /// Settings of a TLS client that trusts these authorities.
    fn client(&mut self, trust: &Trust, own: Option<&Identity>) -> Option<Arc<ClientConfig>> {
        let anchors = self.anchors(trust)?;
        match net::tls::client_config(&anchors, own) {
            Ok(config) => Some(config),
            Err(message) => {
                let (Trust::System(place) | Trust::File(place)) = trust;
                let remedy = "compare the files with docs/configuration.md".to_owned();
                let mistake = place.mistake(self.text, self.file, message, remedy);
                self.mistakes.push(mistake);
                None
            }
        }
    }

    /// Settings of an HTTPS server with the certificate of these files; the library may reject them.
    fn server(
        &mut self,
        files: &CertificateFiles,
        settings: Result<Arc<ServerConfig>, String>,
    ) -> Option<Arc<ServerConfig>> {
        let rejected = |why: String| {
            let chain = files.chain.path().display();
            self.mistakes.push(files.chain.mistake(
                self.text,
                self.file,
                format!("TLS cannot be set up with {chain}: {why}"),
                "compare the certificates with docs/console.md, and reload again".to_owned(),
            ));
        };
        settings.map_err(rejected).ok()
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

fn oldest(version: TlsVersion) -> MinimumVersion {
    match version {
        TlsVersion::Tls12 => MinimumVersion::Tls12,
        TlsVersion::Tls13 => MinimumVersion::Tls13,
    }
}

impl LoadedFiles {
    /// Reads every file that `config` names; `text` and `file` are its text and name, for mistakes. A reload passes the
    /// files in use: their TLS sessions can be resumed, and a valid certificate is not replaced by an invalid one.
    ///
    /// # Errors
    /// The mistakes, by file.
    pub(crate) fn read(
        config: &Config,
        text: &str,
        file: &str,
        before: Option<&LoadedFiles>,
    ) -> Result<LoadedFiles, Vec<Mistake>> {
        let mut reader = FileChecker {
            text,
            file,
            before,
            mistakes: Vec::new(),
            warnings: Vec::new(),
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
        for listen in config.ng_server.iter().flat_map(|node| &node.listen) {
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
        // Redirect and transfer targets are verified with the system's authorities; without these, TLS to them fails.
        if let Ok(anchors) = reader.system.get_or_insert_with(Anchors::system).as_ref() {
            let settings = ClientSettings {
                anchors: Some(anchors.clone()),
                identity: None,
                pins: Vec::new(),
                oldest: MinimumVersion::Tls12,
            };
            impossible.extend(security.client("", settings).err());
        }
        // Valid files should be compatible; if they are not, none of them is used.
        for message in impossible {
            reader.mistakes.push(Mistake {
                file: file.to_owned(),
                line: 1,
                column: 1,
                span: 0..0,
                message: format!("TLS cannot be set up: {message}"),
                remedy: "compare the files with docs/configuration.md, and report a bug if they are correct"
                    .to_owned(),
            });
        }
        let token = config.control.as_ref().and_then(|control| {
            let place = control.token.as_ref()?;
            let read = BearerToken::read(place.path());
            let failed = |(message, remedy): (String, String)| {
                let mistake = place.mistake(text, file, message, remedy);
                reader.mistakes.push(mistake);
            };
            read.map_err(failed).ok()
        });
        let alarms = alarm_files(&mut reader, config);
        let traces = config.traces.as_ref();
        let traces = traces.map_or_else(HttpCredentials::default, |spec| HttpCredentials {
            secret: None,
            token: reader.token(spec.token.as_ref()),
            tls: match spec.url.is_secure {
                true => reader.client(&spec.ca, None),
                false => None,
            },
        });
        let console = config.console.as_ref();
        let oidc = console.and_then(|console| console.oidc.as_ref());
        let oidc = oidc.map_or_else(HttpCredentials::default, |spec| {
            let any = |text: &str| text.chars().all(|char| !char.is_control());
            let secret = spec.secret.as_ref();
            HttpCredentials {
                token: None,
                secret: secret.and_then(|place| reader.secret(place, any, "characters")),
                tls: match spec.issuer.starts_with("https:") {
                    true => reader.client(&spec.ca, None),
                    false => None,
                },
            }
        });
        let console_clients = console.map_or(ClientAuth::None, |console| {
            let anchors = console.client_ca.as_ref();
            match anchors.and_then(|trust| reader.anchors(trust)) {
                None => ClientAuth::None,
                Some(anchors) if console.requires_certificate => ClientAuth::Require(anchors),
                Some(anchors) => ClientAuth::Request(anchors),
            }
        });
        let console = console.and_then(|console| {
            let files = console.certificate.as_ref()?;
            let identity = reader.identity(files)?;
            // Here, so that settings that the library rejects are refused before anything is changed.
            reader.server(files, identity.https_server(&console_clients))
        });
        let gateway = config.gateway.as_ref().and_then(|gateway| {
            // Checked and watched for its expiry as the others are; a mistake in it is one of its own line.
            if let Some(files) = gateway.certificate() {
                reader.identity(files)?;
            }
            let failed = |(message, remedy): (String, String)| {
                let place = gateway.key_place();
                let mistake = place.mistake(text, file, message, remedy);
                reader.mistakes.push(mistake);
            };
            GatewayKeys::read(gateway).map_err(failed).ok()
        });
        match reader.mistakes.is_empty() {
            true => Ok(LoadedFiles {
                security,
                token,
                console,
                oidc,
                alarms,
                traces,
                gateway,
                warnings: reader.warnings,
                certificates: reader.certificates,
            }),
            false => {
                reader.mistakes.sort_by_key(|mistake| mistake.span.start);
                reader.mistakes.dedup();
                Err(reader.mistakes)
            }
        }
    }

    /// Events of certificates that are new or changed since `before`.
    pub fn changes(&self, before: Option<&LoadedFiles>) -> Vec<EventKind> {
        self.certificates
            .iter()
            .filter(|(file, identity)| {
                before
                    .and_then(|before| before.certificates.get(*file))
                    .is_none_or(|old| old.fingerprint() != identity.fingerprint())
            })
            .map(|(file, identity)| loaded_event(file, identity))
            .collect()
    }

    /// The files of the certificates, as events name them.
    pub(crate) fn certificate_names(&self) -> impl Iterator<Item = String> {
        self.certificates
            .keys()
            .map(|file| file.display().to_string())
    }

    /// Events of certificates that have to be renewed now.
    pub fn expiry_events(&self) -> Vec<EventKind> {
        let now = wall_clock();
        self.certificates
            .iter()
            .filter_map(|(file, identity)| expiry_event(file, identity.identities(), now))
            .collect()
    }
}

/// The event for a certificate that is in use from now on.
fn loaded_event(file: &Path, identity: &Identity) -> EventKind {
    EventKind::CertificateLoaded {
        certificate: file.display().to_string(),
        names: identity.identities().list(),
        valid_until: date(identity.identities().not_after),
    }
}

/// The only certificate of a program, as it was read at the start or at the last reload.
#[derive(Debug)]
pub(crate) struct WatchedCertificate<'c> {
    files: &'c CertificateFiles,
    identity: Option<Identity>,
}

impl<'c> WatchedCertificate<'c> {
    pub(crate) fn new(files: &'c CertificateFiles) -> WatchedCertificate<'c> {
        WatchedCertificate {
            files,
            identity: None,
        }
    }

    /// Reads it, and returns the event about another certificate than before. One that cannot be read is refused where
    /// it is loaded.
    pub(crate) fn read(&mut self) -> Option<EventKind> {
        let file = self.files.chain.path();
        let identity = Identity::read(file, self.files.key.path()).ok()?;
        let before = self.identity.as_ref().map(Identity::fingerprint);
        let is_new = before != Some(identity.fingerprint());
        let event = is_new.then(|| loaded_event(file, &identity));
        self.identity = Some(identity);
        event
    }

    /// The event about a certificate that has to be renewed now.
    pub(crate) fn expiry(&self) -> Option<EventKind> {
        let identity = self.identity.as_ref()?;
        expiry_event(self.files.chain.path(), identity.identities(), wall_clock())
    }
}

/// The event for one certificate at `now`, seconds since 1970.
fn expiry_event(file: &Path, identities: &net::tls::Identities, now: i64) -> Option<EventKind> {
    let left = identities.not_after - now;
    let state = match left {
        ..0 => EXPIRED,
        _ if left < 7 * DAY_S => "urgent",
        _ if left < 30 * DAY_S => "soon",
        _ => return None,
    };
    Some(EventKind::CertificateExpires {
        certificate: file.display().to_string(),
        names: identities.list(),
        valid_until: date(identities.not_after),
        days_left: u64::try_from(left / DAY_S).unwrap_or(0),
        state: state.to_owned(),
    })
}

/// The files of the receivers of alarms.
fn alarm_files(reader: &mut FileChecker<'_>, config: &Config) -> AlarmFiles {
    let mut files = AlarmFiles::default();
    let Some(spec) = &config.alarms else {
        return files;
    };
    for webhook in &spec.webhooks {
        let any = |text: &str| text.chars().all(|char| !char.is_control());
        let secret = webhook.secret.as_ref();
        let secret = secret.and_then(|place| reader.secret(place, any, "characters"));
        let token = reader.token(webhook.token.as_ref());
        let tls = match webhook.url.is_secure {
            true => reader.client(&webhook.ca, None),
            false => None,
        };
        files.webhooks.push(HttpCredentials { secret, token, tls });
    }
    for syslog in &spec.syslog {
        files.syslog.push(match syslog.transport {
            SyslogTransport::Tls => {
                let own = syslog.certificate.as_ref();
                let own = own.and_then(|own| reader.identity(own));
                reader.client(&syslog.ca, own.as_ref())
            }
            SyslogTransport::Udp | SyslogTransport::Tcp => None,
        });
    }
    files
}

fn server(reader: &mut FileChecker<'_>, tls: &config::ListenTls) -> Option<ServerSettings> {
    let identities: Vec<Identity> = tls
        .certificates
        .iter()
        .filter_map(|files| reader.identity(files))
        .collect();
    let anchors = tls
        .client_ca
        .as_ref()
        .and_then(|trust| reader.anchors(trust));
    let client_auth = match (tls.clients, anchors) {
        (ClientAuthentication::None, _) => ClientAuth::None,
        (ClientAuthentication::Request, Some(anchors)) => ClientAuth::Request(anchors),
        (ClientAuthentication::Require, Some(anchors)) => ClientAuth::Require(anchors),
        // The mistake is recorded; without an authority no client could be verified.
        (_, None) => return None,
    };
    Some(ServerSettings {
        identities,
        client_auth,
        oldest: oldest(tls.oldest),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_settings_of_the_console_are_a_mistake() {
        let text = "[[interface]]\nname = \"a\"\nlisten = \"udp:127.0.0.1\"\n[console]\nlisten = \"127.0.0.1:8080\"\ncertificate = { chain = \"c.pem\", key = \"c.key\" }\n";
        let config = config::parse(text, "f").unwrap();
        let console = config.console.unwrap();
        let mut reader = FileChecker {
            text,
            file: "f",
            before: None,
            mistakes: Vec::new(),
            warnings: Vec::new(),
            certificates: BTreeMap::new(),
            system: None,
        };
        let files = console.certificate.unwrap();
        let settings = reader.server(&files, Err("no entropy".to_owned()));
        assert!(settings.is_none());
        let [mistake] = &reader.mistakes[..] else {
            panic!("{:?}", reader.mistakes)
        };
        assert_eq!(mistake.line, 6);
        assert!(
            mistake.message.contains("c.pem") && mistake.message.contains("no entropy"),
            "{}",
            mistake.message
        );
    }

    /// Writes a certificate that is valid until the end of a year, and its key, into a folder.
    fn write_certificate(folder: &Path, name: &str, year: i32) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["near.example".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 12, 31);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.join(format!("{name}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{name}.key")), key.serialize_pem()).unwrap();
    }

    /// Its expiry would be noticed by the tunnel that is down.
    #[test]
    fn certificate_of_the_key_exchange_is_checked_and_watched() {
        let folder = std::env::temp_dir().join(format!("hornwork-ike-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let text = format!(
            "[gateway]\nlocal = \"192.0.2.1\"\n[gateway.ike]\ncertificate = \"{0}/near.pem\"\nprivate_key = \"{0}/near.key\"\nauthority = \"{0}/ca.pem\"\n[[gateway.tunnel]]\nname = \"b\"\npeer = \"192.0.2.2\"\nlocal_networks = \"10.1.0.0/24\"\nremote_networks = \"10.2.0.0/24\"\n",
            folder.display()
        );
        let config = config::parse(&text, "f").unwrap();
        let read = || LoadedFiles::read(&config, &text, "f", None);
        write_certificate(&folder, "ca", 2099);
        write_certificate(&folder, "near", 2099);
        let loaded = read().unwrap();
        assert!(loaded.gateway.is_some());
        let names: Vec<String> = loaded.certificate_names().collect();
        assert_eq!(names, [folder.join("near.pem").display().to_string()]);
        assert_eq!(loaded.changes(None).len(), 1);
        let files = config.gateway.as_ref().unwrap().certificate().unwrap();
        let mut watched = WatchedCertificate::new(files);
        assert!(watched.expiry().is_none());
        let name = |event: Option<EventKind>| event.map(|event| event.name());
        assert_eq!(name(watched.read()), Some("certificate_loaded"));
        assert_eq!((name(watched.read()), name(watched.expiry())), (None, None));
        write_certificate(&folder, "near", 2020);
        assert!(watched.expiry().is_none(), "not in use yet");
        assert_eq!(name(watched.read()), Some("certificate_loaded"));
        assert_eq!(name(watched.expiry()), Some("certificate_expires"));
        let expired = |found: &[Mistake]| {
            let [one] = found else { panic!("{found:?}") };
            assert!(one.message.contains("expired on 2020-12-31"), "{one}");
            assert_eq!(one.line, 4);
        };
        // A start goes on with it, and so does a reload that has it in use; it does not replace a valid one.
        let started = read().unwrap();
        expired(&started.warnings);
        let reload = |before| LoadedFiles::read(&config, &text, "f", Some(before));
        expired(&reload(&started).unwrap().warnings);
        expired(&reload(&loaded).unwrap_err());
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(watched.read().is_none());
    }

    #[test]
    fn certificates_are_reported_30_and_7_days_before_expiry_and_after() {
        let identities = net::tls::Identities {
            domains: vec!["example.com".to_owned()],
            not_after: 100 * DAY_S,
            ..Default::default()
        };
        for (now, expected) in [
            (69 * DAY_S, None),
            (70 * DAY_S, None),
            (70 * DAY_S + 1, Some(("soon", 29))),
            (93 * DAY_S, Some(("soon", 7))),
            (93 * DAY_S + 1, Some(("urgent", 6))),
            (100 * DAY_S, Some(("urgent", 0))),
            (100 * DAY_S + 1, Some(("expired", 0))),
            (200 * DAY_S, Some(("expired", 0))),
        ] {
            let logged = expiry_event(Path::new("x.pem"), &identities, now);
            let logged = logged.map(|note| match note {
                EventKind::CertificateExpires {
                    state,
                    days_left: days,
                    ..
                } => (state, days),
                other => panic!("{other:?}"),
            });
            let expected = expected.map(|(state, days)| (state.to_owned(), days));
            assert_eq!(logged, expected, "{now}");
        }
    }
}
