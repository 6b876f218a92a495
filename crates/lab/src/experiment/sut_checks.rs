//! Checks of the system under test against the other tables of an experiment.

use super::{Experiment, IpVersions, SutMedia};
use crate::subject::{self, SubjectPlace};

/// Most media nodes beside the border.
const MAX_NODES: u8 = 16;

/// Checks media nodes.
pub(super) fn check_nodes(experiment: &Experiment) -> Result<(), String> {
    let sut = &experiment.sut;
    if sut.media_nodes > MAX_NODES || sut.media_nodes_drained > sut.media_nodes {
        return Err(format!(
            "sut.media_nodes = {}, sut.media_nodes_drained = {}: at most {MAX_NODES} nodes, and at most as many drained",
            sut.media_nodes, sut.media_nodes_drained
        ));
    }
    let others = sut.is_external()
        || sut.direct
        || sut.media == SutMedia::Bypass
        || experiment.conference.is_some()
        || sut.ip != IpVersions::Ipv4;
    if sut.media_nodes > 0 && others {
        return Err(
            "sut.media_nodes needs the built-in border with IPv4, anchored media and no conference"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks the kernel relay, which needs namespaces that only trials of calls and registrations set up.
pub(super) fn check_kernel_relay(experiment: &Experiment) -> Result<(), String> {
    let sut = &experiment.sut;
    let others = sut.is_external()
        || sut.direct
        || sut.media_nodes > 0
        || experiment.conference.is_some()
        || experiment.streams.is_some()
        || experiment.phone.is_some();
    if sut.media == SutMedia::KernelRelay && others {
        return Err(
            "sut.media = \"kernel_relay\" needs the built-in border, without media nodes, [conference], [streams] and [phone]"
                .to_owned(),
        );
    }
    Ok(())
}

/// Checks a subject, which trials of calls and registrations start on this machine.
pub(super) fn check_subject(experiment: &Experiment) -> Result<(), String> {
    let sut = &experiment.sut;
    if sut.agent().is_some() == sut.agent_token_file.is_empty() {
        return Err(
            "sut.agent_token_file names the token for a subject at an agent (sut.subject = \"NAME@ADDRESS:PORT\"): set both or none"
                .to_owned(),
        );
    }
    if sut.agent().is_none() && !sut.agent_ca_file.is_empty() {
        return Err(
            "sut.agent_ca_file needs a subject at an agent (sut.subject = \"NAME@ADDRESS:PORT\")"
                .to_owned(),
        );
    }
    if sut.subject.is_empty() {
        return Ok(());
    }
    match subject::place(&sut.subject).map_err(|error| error.to_string())? {
        SubjectPlace::Here(_) | SubjectPlace::Agent(..) => {}
        SubjectPlace::Address(address) => {
            return Err(format!(
                "sut.subject = \"{address}\": an address is set with sut.address"
            ));
        }
    }
    if sut.address.is_some() {
        return Err("sut.subject and sut.address exclude each other".to_owned());
    }
    let of_our_border = [
        ("workers", sut.workers > 0),
        ("header_rules", sut.header_rules > 0),
        ("call_limit_per_second", sut.call_limit_per_second > 0),
        ("memory_mib", sut.memory_mib > 0),
        ("refresh_interval_seconds", sut.refresh_interval_seconds > 0),
        ("cpu_percent", sut.cpu_percent > 0.0),
        ("cpu", sut.cpu.is_some()),
        ("process_id", sut.process_id.is_some()),
    ];
    if let Some((key, _)) = of_our_border.into_iter().find(|(_, set)| *set) {
        return Err(format!(
            "sut.{key} does not apply to a subject (sut.subject): remove it with --set sut.{key}="
        ));
    }
    let others = experiment.conference.is_some()
        || experiment.streams.is_some()
        || experiment.phone.is_some()
        || experiment.esp.is_some();
    if others {
        return Err(
            "sut.subject takes calls and registrations: [conference], [streams], [phone] and [esp] do not use it"
                .to_owned(),
        );
    }
    if experiment.uses_tls() || experiment.uses_websockets() {
        return Err(
            "sut.subject is called over UDP or TCP; for TLS and WebSocket start the system yourself and name its address (sut.address)"
                .to_owned(),
        );
    }
    Ok(())
}
