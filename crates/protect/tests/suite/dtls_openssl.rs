//! Interoperability of DTLS-SRTP with OpenSSL: both roles over loopback, and comparison of the exported keys.
//!
//! Skipped, with a message, if the `openssl` program is missing.

use crate::common;

use common::to_hex;
use engine::Time;
use protect::dtls::{
    Certificate, CertificateFingerprint, DtlsEndpoint, DtlsEvent, DtlsSession, Epoch, Established,
    HashFunction, Role, Settings,
};
use protect::srtp::Suite;
use std::io::Read;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROFILES: [(&str, Suite); 3] = [
    ("SRTP_AES128_CM_SHA1_80", Suite::AesCm128HmacSha1_80),
    ("SRTP_AEAD_AES_128_GCM", Suite::AeadAes128Gcm),
    ("SRTP_AEAD_AES_256_GCM", Suite::AeadAes256Gcm),
];

/// A certificate for OpenSSL, in a separate directory.
struct Peer {
    folder: PathBuf,
    fingerprint: CertificateFingerprint,
}

impl Peer {
    fn new(name: &str) -> Option<Peer> {
        let folder =
            std::env::temp_dir().join(format!("hornwork-dtls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = |name: &str| folder.join(name).display().to_string();
        let generation = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
            ])
            .args([
                "-subj",
                "/CN=judge",
                "-days",
                "2",
                "-keyout",
                &file("key.pem"),
                "-out",
                &file("cert.pem"),
            ])
            .output();
        match generation {
            Err(error) => {
                println!("skipped: not installed: openssl ({error})");
                let _ = std::fs::remove_dir_all(&folder);
                return None;
            }
            Ok(generation) => assert!(
                generation.status.success(),
                "{}",
                String::from_utf8_lossy(&generation.stderr)
            ),
        }
        let output = Command::new("openssl")
            .args([
                "x509",
                "-noout",
                "-fingerprint",
                "-sha256",
                "-in",
                &file("cert.pem"),
            ])
            .output()
            .unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let value = output
            .trim()
            .rsplit('=')
            .next()
            .unwrap()
            .as_bytes()
            .to_vec();
        Some(Peer {
            fingerprint: CertificateFingerprint::parse(b"sha-256", &value).unwrap(),
            folder,
        })
    }

    fn start(&self, role: &str, port: u16, profile: &str, length: usize) -> Child {
        let file = |name: &str| self.folder.join(name).display().to_string();
        let mut command = Command::new("openssl");
        command.arg(role).args(["-dtls1_2", "-use_srtp", profile]);
        command.args(["-cert", &file("cert.pem"), "-key", &file("key.pem")]);
        command.args([
            "-keymatexport",
            "EXTRACTOR-dtls_srtp",
            "-keymatexportlen",
            &length.to_string(),
        ]);
        if role == "s_server" {
            command.args(["-accept", &port.to_string(), "-Verify", "1", "-4"]);
        } else {
            command.args(["-connect", &format!("127.0.0.1:{port}")]);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn endpoint(start: Instant) -> DtlsEndpoint {
    let certificate = Certificate::generate().unwrap();
    DtlsEndpoint::new(Settings::default(), certificate, Epoch::new(start)).unwrap()
}

/// Drives a session over a socket until it is established and the peer has had time to print its keys.
fn drive(
    session: &mut DtlsSession,
    socket: &UdpSocket,
    mut peer: Option<std::net::SocketAddr>,
    start: Instant,
) -> Option<Established> {
    socket
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    let mut established = None;
    let mut until = start + Duration::from_secs(8);
    let mut buffer = [0; 2_048];
    while Instant::now() < until {
        let now = Time::ZERO + start.elapsed();
        session.timeout(now);
        while let Some(event) = session.next_event() {
            match event {
                DtlsEvent::Send(datagram) => {
                    if let Some(peer) = peer {
                        // This fails if the server is not up yet; the retransmission arrives.
                        let _ = socket.send_to(datagram, peer);
                    }
                }
                DtlsEvent::Established(keys) => {
                    established = Some(keys);
                    until = Instant::now() + Duration::from_millis(400);
                }
                DtlsEvent::Failed(failure) => panic!("{failure}"),
                DtlsEvent::Closed => return established,
            }
        }
        if let Ok((length, from)) = socket.recv_from(&mut buffer) {
            peer = Some(from);
            let _ = session.feed(&buffer[..length], Time::ZERO + start.elapsed());
        }
    }
    established
}

/// The output of OpenSSL.
fn output(mut child: Child) -> String {
    let _ = child.kill();
    let mut text = String::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    let mut errors = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut errors)
        .unwrap();
    let _ = child.wait();
    text + &errors
}

/// Client key, server key, client salt, server salt.
fn material(client: &[u8], server: &[u8], suite: Suite) -> String {
    let (client_key, client_salt) = client.split_at(suite.key_length());
    let (server_key, server_salt) = server.split_at(suite.key_length());
    to_hex(&[client_key, server_key, client_salt, server_salt].concat()).to_uppercase()
}

#[test]
fn dtls_client_interoperates_with_openssl() {
    let Some(peer) = Peer::new("server") else {
        return;
    };
    for (profile, suite) in PROFILES {
        let free = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let child = peer.start("s_server", port, profile, 2 * suite.key_and_salt_length());
        let start = Instant::now();
        let ours = endpoint(start);
        let mut session = DtlsSession::new(
            &ours,
            Role::Client,
            Some(vec![peer.fingerprint.clone()]),
            Time::ZERO,
        );
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = format!("127.0.0.1:{port}").parse().unwrap();
        let established = drive(&mut session, &socket, Some(address), start);
        let output_text = output(child);
        let established = established.unwrap_or_else(|| panic!("{profile}: {output_text}"));
        assert_eq!(established.suite, suite);
        let keys = material(
            established.local.key_and_salt(),
            established.remote.key_and_salt(),
            suite,
        );
        assert!(output_text.contains(&keys), "{profile}: {output_text}");
        println!("judged by openssl as server: {profile}");
    }
}

#[test]
fn dtls_server_interoperates_with_openssl() {
    let Some(peer) = Peer::new("client") else {
        return;
    };
    for (profile, suite) in PROFILES {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let child = peer.start("s_client", port, profile, 2 * suite.key_and_salt_length());
        let start = Instant::now();
        let ours = endpoint(start);
        let mut session = DtlsSession::new(
            &ours,
            Role::Server,
            Some(vec![peer.fingerprint.clone()]),
            Time::ZERO,
        );
        let established = drive(&mut session, &socket, None, start);
        let output_text = output(child);
        let established = established.unwrap_or_else(|| panic!("{profile}: {output_text}"));
        assert_eq!(established.suite, suite);
        let keys = material(
            established.remote.key_and_salt(),
            established.local.key_and_salt(),
            suite,
        );
        assert!(output_text.contains(&keys), "{profile}: {output_text}");
        assert!(
            ours.certificate()
                .fingerprint(HashFunction::Sha256)
                .to_string()
                .len()
                > 90
        );
        println!("judged by openssl as client: {profile}");
    }
}
