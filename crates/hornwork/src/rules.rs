//! `hornwork rules try`: applies the header rules of a configuration to one message.

use crate::configuration::load;
use clap::{Args, Subcommand, ValueEnum};
use config::{Config, InterfaceId, TrunkId};
use engine::Transport;
use rules::{Effects, MessageContext, RuleDirection};
use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use wire::sip::{Edit, Message, emit};

/// Header rules.
#[derive(Debug, Subcommand)]
pub enum Rules {
    /// Apply the rules to the message on standard input. The matching rules are printed to standard error, the changed
    /// message to standard output. Exit status 1: an action of a rule failed, 2: invalid input.
    Try(Try),
}

/// Options of `hornwork rules try`.
#[derive(Debug, Args)]
#[command(after_help = "Example: hornwork rules try examples/header-rules.toml < message")]
pub struct Try {
    /// Configuration file.
    #[arg(value_name = "FILE")]
    config: PathBuf,
    /// Interface of the message. Default: the first one.
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Direction of the message.
    #[arg(long, value_enum, default_value_t = MessageDirection::In)]
    direction: MessageDirection,
    /// Peer: ADDRESS or ADDRESS:PORT. Default: a documentation address (192.0.2.1).
    #[arg(long, value_name = "ADDRESS")]
    source: Option<String>,
    /// Trunk of the peer. Default: the trunk with the address of --source.
    #[arg(long, value_name = "NAME")]
    trunk: Option<String>,
    /// Transport.
    #[arg(long, value_name = "NAME", default_value = "udp", value_parser = ["udp", "tcp", "tls", "ws", "wss"])]
    transport: String,
    /// Authenticated user of the sender.
    #[arg(long, value_name = "NAME", default_value = "")]
    user: String,
    /// Tag set by an earlier message of the call, as NAME=VALUE.
    #[arg(long, value_name = "NAME=VALUE")]
    tag: Vec<String>,
}

/// Direction of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum MessageDirection {
    In,
    Out,
}

/// Message of an error.
type RulesError = String;

/// `hornwork rules`.
pub fn run(command: &Rules) -> ExitCode {
    let Rules::Try(options) = command;
    let config = match load(&options.config) {
        Ok(config) => config,
        Err(code) => return code,
    };
    let mut bytes = Vec::new();
    if let Err(error) = std::io::stdin().lock().read_to_end(&mut bytes) {
        eprintln!("hornwork: standard input: {error}");
        return ExitCode::from(2);
    }
    match attempt(&config, options, &bytes) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("hornwork: {why}");
            ExitCode::from(2)
        }
    }
}

fn attempt(config: &Config, options: &Try, bytes: &[u8]) -> Result<ExitCode, RulesError> {
    let bytes = with_line_ends(bytes);
    let message = Message::parse(&bytes).map_err(|why| format!("standard input: {why}"))?;
    message
        .validate()
        .map_err(|why| format!("standard input: {}", why.reason))?;
    let interface = interface(config, options.interface.as_deref())?;
    let peer = peer(options.source.as_deref())?;
    let transport = transport(&options.transport);
    let trunk = match &options.trunk {
        Some(name) => Some(
            config
                .trunk_named(name)
                .ok_or_else(|| format!("no trunk \"{name}\""))?,
        ),
        None => config.trunk_of(interface, peer, transport, None),
    };
    let tags = tags(&options.tag)?;
    let scene = MessageContext {
        peer: Some(peer),
        trusted: config.trusts(interface, trunk),
        user: &options.user,
        tags: &tags,
        ..MessageContext::of(
            &message,
            match options.direction {
                MessageDirection::In => RuleDirection::In,
                MessageDirection::Out => RuleDirection::Out,
            },
            config.peer_ref(interface, trunk),
            transport,
        )
    };
    let mut effects = Effects::default();
    config.rules.run(&scene, &mut effects);
    eprint!("{}", report(config, &effects));
    let edits: Vec<Edit<'_>> = effects.all_edits().collect();
    let mut out = Vec::new();
    emit(&message, &edits, &mut out);
    lab::output::print_bytes(&out);
    let failed = effects.refused_edits > 0 || effects.failed_conditions > 0;
    Ok(ExitCode::from(u8::from(failed)))
}

/// The effects of the rules, line by line.
fn report(config: &Config, effects: &Effects) -> String {
    let rules = &config.rules;
    let mut lines: Vec<String> = rules
        .matched_rules(effects)
        .map(|hit| format!("rule {} matches: {}", hit.index + 1, hit.name))
        .collect();
    if lines.is_empty() {
        lines.push(format!("none of {} rules matches", rules.len()));
    }
    for tag in &effects.tags {
        lines.push(format!("tag {} = {}", tag.name, tag.value));
    }
    for line in &effects.log {
        lines.push(format!("log of {}: {}", rules.name(line.rule), line.text));
    }
    if let Some(trunk) = effects.route {
        let name = config
            .trunk(TrunkId(trunk))
            .map(|trunk| trunk.name.as_str());
        lines.push(format!("routed to trunk {}", name.unwrap_or_default()));
    }
    if let Some(refusal) = &effects.refusal {
        let reason = refusal.reason.as_deref().unwrap_or("the usual reason");
        lines.push(format!("refused with {} ({reason})", refusal.status));
    }
    if effects.refused_edits > 0 {
        lines.push(format!(
            "skipped, because they would make the message invalid: {} changes",
            effects.refused_edits
        ));
    }
    if effects.failed_conditions > 0 {
        lines.push(format!(
            "without a value for this message, so false: {} conditions",
            effects.failed_conditions
        ));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Converts the line ends of the header of a message to those of SIP.
fn with_line_ends(bytes: &[u8]) -> Vec<u8> {
    let head = bytes.windows(2).position(|pair| pair == b"\n\n");
    if bytes.windows(2).any(|pair| pair == b"\r\n") {
        return bytes.to_vec();
    }
    let (head, body) = match head {
        Some(at) => bytes.split_at(at + 2),
        None => (bytes, &b""[..]),
    };
    let mut out = String::from_utf8_lossy(head)
        .replace('\n', "\r\n")
        .into_bytes();
    if body.is_empty() && !out.ends_with(b"\r\n\r\n") {
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(body);
    out
}

fn interface(config: &Config, name: Option<&str>) -> Result<InterfaceId, RulesError> {
    match name {
        None => Ok(InterfaceId(0)),
        Some(name) => config.interface_named(name).ok_or_else(|| {
            let names: Vec<&str> = config.interfaces.iter().map(|i| i.name.as_str()).collect();
            format!("no interface \"{name}\"; configured: {}", names.join(", "))
        }),
    }
}

fn peer(text: Option<&str>) -> Result<SocketAddr, RulesError> {
    let text = text.unwrap_or("192.0.2.1");
    text.parse::<SocketAddr>()
        .ok()
        .or_else(|| Some(SocketAddr::new(text.parse::<IpAddr>().ok()?, 5060)))
        .ok_or_else(|| format!("\"{text}\" is not an address: write ADDRESS or ADDRESS:PORT"))
}

fn transport(name: &str) -> Transport {
    match name {
        "tcp" => Transport::Tcp,
        "tls" => Transport::Tls,
        "ws" => Transport::Ws,
        "wss" => Transport::Wss,
        _ => Transport::Udp,
    }
}

/// Name and value.
type TagPair = (Box<str>, Box<str>);

fn tags(words: &[String]) -> Result<Vec<TagPair>, RulesError> {
    words
        .iter()
        .map(|word| match word.split_once('=') {
            Some((name, value)) => Ok((name.into(), value.into())),
            None => Err(format!("\"{word}\" is not a tag: write NAME=VALUE")),
        })
        .collect()
}
