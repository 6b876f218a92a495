//! Request-URIs of requests to trunks.

use crate::policy::{CalledNumber, escape_user, escape_user_byte};
use config::{TargetSpec, Trunk};
use engine::Transport;

/// The URI of a number at a trunk; without a number, the URI of the trunk.
pub(super) fn trunk_uri(trunk: &Trunk, target: &TargetSpec, called: CalledNumber<'_>) -> Vec<u8> {
    // Capacity for the whole text, which then does not move while it grows.
    let mut uri = Vec::with_capacity(48);
    uri.extend_from_slice(b"sip:");
    if !called.number.is_empty() {
        escape_user(called.number, &mut uri);
        append_number_parameters(called.parameters, &mut uri);
        uri.push(b'@');
    }
    let host = trunk.domain.as_ref().unwrap_or(&target.host);
    host.append_to(&mut uri);
    if called.is_telephone && !called.number.is_empty() {
        uri.extend_from_slice(b";user=phone");
    }
    if let Some(transport) = target
        .transport
        .filter(|&transport| transport != Transport::Udp)
    {
        uri.extend_from_slice(b";transport=");
        uri.extend_from_slice(transport.uri_name().as_bytes());
    }
    uri
}

/// Appends the parameters of a number, except its trunk group: that is one of this network (RFC 4904).
fn append_number_parameters(parameters: &[u8], out: &mut Vec<u8>) {
    for parameter in parameters.split(|byte| *byte == b';') {
        let name = parameter.split(|byte| *byte == b'=').next();
        let name = name.unwrap_or_default();
        let is_ours = [&b"tgrp"[..], b"trunk-context"]
            .iter()
            .any(|ours| name.eq_ignore_ascii_case(ours));
        if name.is_empty() || is_ours {
            continue;
        }
        out.push(b';');
        for &byte in parameter {
            match byte {
                // Escapes are kept.
                b'%' => out.push(byte),
                _ => escape_user_byte(byte, out),
            }
        }
    }
}
