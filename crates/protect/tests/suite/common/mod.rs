//! Fixtures shared by several tests.
#![allow(dead_code)]

use engine::Entropy;
use protect::srtp::{
    ContextLimits, Inbound, MAX_OVERHEAD, MasterKey, Outbound, SrtpFailure, Suite,
};
use std::path::PathBuf;

/// The directory of external test data; `None`, with a message, if it is absent.
pub fn testdata() -> Option<PathBuf> {
    let beside = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/testdata");
    let folder = std::env::var_os("HORNWORK_TESTDATA").map_or(beside, PathBuf::from);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: testdata absent");
    None
}

/// A Python interpreter with this module: `HORNWORK_PYTHON`, else `python3` on the path or Debian's own, which has
/// Debian's modules if another comes first on the path. `None`, with a message, if no interpreter has it.
pub fn python(module: &str) -> Option<String> {
    let named = std::env::var("HORNWORK_PYTHON").ok();
    let candidates = ["python3", "/usr/bin/python3"].map(str::to_owned);
    let has = |python: &String| {
        std::process::Command::new(python)
            .args(["-c", &format!("import {module}")])
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let found = named.into_iter().chain(candidates).find(has);
    if found.is_none() {
        println!("skipped: not installed: {module} for Python (Debian: python3-{module})");
    }
    found
}

pub fn json(folder: &std::path::Path, name: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(folder.join(name)).unwrap();
    serde_json::from_str(&text).unwrap()
}

pub fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub fn key(suite: Suite, seed: u64) -> MasterKey {
    MasterKey::generate(suite, &mut Entropy::from_number(seed))
}

pub fn outbound(key: &MasterKey) -> Outbound {
    Outbound::new(key, ContextLimits::default()).unwrap()
}

pub fn inbound(key: &MasterKey) -> Inbound {
    Inbound::new(key, ContextLimits::default()).unwrap()
}

pub fn rtp(ssrc: u32, sequence: u16, payload: &[u8]) -> Vec<u8> {
    let header = wire::rtp::RtpHeader {
        payload_type: 18,
        sequence,
        timestamp: u32::from(sequence).wrapping_mul(160),
        ssrc,
        ..wire::rtp::RtpHeader::default()
    };
    header.packet(payload)
}

pub fn rtcp(ssrc: u32, note: &str) -> Vec<u8> {
    wire::rtcp::CompoundBuilder::new()
        .receiver_report(ssrc, &[])
        .cname(ssrc, note)
        .finish()
}

pub fn protect_packet(outbound: &mut Outbound, packet: &[u8]) -> Result<Vec<u8>, SrtpFailure> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + MAX_OVERHEAD, 0xee);
    let length = outbound.protect_rtp(&mut buffer, packet.len())?;
    assert!(
        buffer[length..].iter().all(|byte| *byte == 0xee),
        "bytes behind the packet were changed"
    );
    buffer.truncate(length);
    Ok(buffer)
}

pub fn unprotect_packet(inbound: &mut Inbound, packet: &[u8]) -> Result<Vec<u8>, SrtpFailure> {
    let mut buffer = packet.to_vec();
    let length = inbound.unprotect_rtp(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}

pub fn protect_rtcp_packet(outbound: &mut Outbound, packet: &[u8]) -> Result<Vec<u8>, SrtpFailure> {
    let mut buffer = packet.to_vec();
    buffer.resize(packet.len() + MAX_OVERHEAD, 0xee);
    let length = outbound.protect_rtcp(&mut buffer, packet.len())?;
    assert!(
        buffer[length..].iter().all(|byte| *byte == 0xee),
        "bytes behind the packet were changed"
    );
    buffer.truncate(length);
    Ok(buffer)
}

pub fn unprotect_rtcp_packet(inbound: &mut Inbound, packet: &[u8]) -> Result<Vec<u8>, SrtpFailure> {
    let mut buffer = packet.to_vec();
    let length = inbound.unprotect_rtcp(&mut buffer)?;
    buffer.truncate(length);
    Ok(buffer)
}
