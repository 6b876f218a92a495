//! Interoperability with libsrtp, through Python's pylibsrtp: each side unprotects packets of the other.
//!
//! Skipped, with a message, without a Python that has pylibsrtp.

use crate::common;

use common::{
    hex, inbound, key, outbound, protect_packet, protect_rtcp_packet, python, rtcp, rtp, to_hex,
    unprotect_packet, unprotect_rtcp_packet,
};
use protect::srtp::{SrtpFailure, Suite};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Responds to each line `session suite key operation packet` with `ok packet` or `no reason`. Suites without a name
/// in the wrapper are written into the policy's memory, whose first six words are: cipher, its key length,
/// authenticator, its key length, tag length, services.
const JUDGE: &str = r#"
import sys
from pylibsrtp import Policy, Session, Error, ffi
P = Policy
NAMED = {
    "AES_CM_128_HMAC_SHA1_80": P.SRTP_PROFILE_AES128_CM_SHA1_80,
    "AES_CM_128_HMAC_SHA1_32": P.SRTP_PROFILE_AES128_CM_SHA1_32,
    "AEAD_AES_128_GCM": P.SRTP_PROFILE_AEAD_AES_128_GCM,
    "AEAD_AES_256_GCM": P.SRTP_PROFILE_AEAD_AES_256_GCM,
}
WORDS = {
    "AES_256_CM_HMAC_SHA1_80": (5, 46, 3, 20, 10, 3),
    "AES_256_CM_HMAC_SHA1_32": (5, 46, 3, 20, 4, 3),
    "NULL_HMAC_SHA1_80": (0, 30, 3, 20, 10, 2),
    "NULL_HMAC_SHA1_32": (0, 30, 3, 20, 4, 2),
}
def session(suite, key, receives):
    kind = P.SSRC_ANY_INBOUND if receives else P.SSRC_ANY_OUTBOUND
    profile = NAMED.get(suite, P.SRTP_PROFILE_AES128_CM_SHA1_80)
    policy = Policy(key=key, ssrc_type=kind, srtp_profile=profile)
    words = WORDS.get(suite)
    if words:
        for part, tag in ((policy._policy.rtp, words[4]), (policy._policy.rtcp, 10)):
            memory = ffi.cast("int *", ffi.addressof(part))
            for at, word in enumerate(words):
                memory[at] = word
            memory[4] = tag
    return Session(policy=policy)
sessions = {}
print("ready", flush=True)
for line in sys.stdin:
    name, suite, key, operation, packet = line.split()
    try:
        if name not in sessions:
            sessions[name] = session(suite, bytes.fromhex(key), operation.startswith("un"))
        result = getattr(sessions[name], operation)(bytes.fromhex(packet))
        print("ok", result.hex(), flush=True)
    except Error as error:
        print("no", error, flush=True)
"#;

struct LibsrtpProcess {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl LibsrtpProcess {
    fn start() -> Option<LibsrtpProcess> {
        let mut child = Command::new(python("pylibsrtp")?)
            .args(["-c", JUDGE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the interpreter has just run");
        let to = child.stdin.take().unwrap();
        let mut from = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        from.read_line(&mut line).unwrap();
        if line.trim() != "ready" {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            panic!("the judge ended: {text}");
        }
        Some(LibsrtpProcess { child, to, from })
    }

    fn request(
        &mut self,
        session: &str,
        suite: Suite,
        secret: &[u8],
        operation: &str,
        packet: &[u8],
    ) -> Result<Vec<u8>, String> {
        let (secret, packet) = (to_hex(secret), to_hex(packet));
        writeln!(self.to, "{session} {suite} {secret} {operation} {packet}").unwrap();
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        match line.trim().split_once(' ') {
            Some(("ok", packet)) => Ok(hex(packet)),
            Some(("no", why)) => Err(why.to_owned()),
            _ => panic!("the judge said {line:?}"),
        }
    }
}

impl Drop for LibsrtpProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sequence numbers from below a wrap to above it, with gaps.
fn sequences() -> impl Iterator<Item = u16> {
    (65_400u64..65_536 + 300)
        .step_by(3)
        .map(|index| index as u16)
}

fn packet(sequence: u16) -> Vec<u8> {
    let payload: Vec<u8> = (0..usize::from(sequence) % 200)
        .map(|at| at as u8)
        .collect();
    if sequence.is_multiple_of(5) {
        let header = wire::rtp::RtpHeader {
            sequence,
            ssrc: 77,
            csrcs: &[1, 2],
            extension: Some((0xbede, &[0x10, 1, 0, 0])),
            ..wire::rtp::RtpHeader::default()
        };
        return header.packet(&payload);
    }
    rtp(77, sequence, &payload)
}

#[test]
fn srtp_interoperates_with_libsrtp() {
    let Some(mut libsrtp) = LibsrtpProcess::start() else {
        return;
    };
    let mut judged = 0;
    // libsrtp up to 2.7 derives the session keys of AES-192 with the function of AES-256 (its issue 763), contrary to
    // RFC 6188, whose test vectors verify ours (`srtp::derive`).
    let suites = Suite::ALL.iter().filter(|suite| suite.key_length() != 24);
    for suite in suites.copied() {
        let key = key(suite, 99);
        let secret = key.key_and_salt();
        let (mut outbound_context, mut inbound_context) = (outbound(&key), inbound(&key));
        for sequence in sequences() {
            let plain = packet(sequence);
            let protected = protect_packet(&mut outbound_context, &plain).unwrap();
            let name = format!("{suite}-theirs");
            let unprotected = libsrtp.request(&name, suite, secret, "unprotect", &protected);
            assert_eq!(unprotected.as_ref(), Ok(&plain), "{suite} {sequence}");

            let name = format!("{suite}-ours");
            let protected = libsrtp
                .request(&name, suite, secret, "protect", &plain)
                .unwrap();
            assert_eq!(
                unprotect_packet(&mut inbound_context, &protected),
                Ok(plain),
                "{suite} {sequence}"
            );
            assert_eq!(
                unprotect_packet(&mut inbound_context, &protected),
                Err(SrtpFailure::Replayed)
            );

            let report = rtcp(77, &format!("report {sequence}"));
            let name = format!("{suite}-theirs-rtcp");
            let protected = protect_rtcp_packet(&mut outbound_context, &report).unwrap();
            let unprotected = libsrtp.request(&name, suite, secret, "unprotect_rtcp", &protected);
            assert_eq!(unprotected.as_ref(), Ok(&report), "{suite} SRTCP");

            let name = format!("{suite}-ours-rtcp");
            let protected = libsrtp
                .request(&name, suite, secret, "protect_rtcp", &report)
                .unwrap();
            assert_eq!(
                unprotect_rtcp_packet(&mut inbound_context, &protected),
                Ok(report),
                "{suite} SRTCP"
            );
            judged += 4;
        }
        let last = protect_packet(&mut outbound_context, &packet(400)).unwrap();
        let mut altered = last.clone();
        altered[13] ^= 1;
        let name = format!("{suite}-theirs");
        let refused = libsrtp.request(&name, suite, secret, "unprotect", &altered);
        assert_eq!(refused.unwrap_err(), "authentication failure", "{suite}");
    }
    println!("{judged} packets judged by libsrtp");
}
