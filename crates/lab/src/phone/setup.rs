//! From the options of a phone to the plan of its host: addresses, rights, audio.

use super::{PhoneAction, PhoneEspKeys, PhoneOptions, PhonePeer, PhoneTask};
use crate::error::LabError;
use crate::experiment::{HangUp, escape};
use crate::host::{
    AnswerPlan, CallFlow, HostPlan, LoginTemplates, MediaKind, OutgoingCallPlan, PhoneAudio,
    PhonePlan, RegistrationPlan, SrtpUse, StreamPeer,
};
use crate::pace::{ArrivalProcess, Bounds, HoldTime};
use crate::tls::TlsSettings;
use crate::trial::local_ip_towards;
use codec::resample::Resampler;
use codec::wav::Wav;
use engine::Transport;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};
use std::path::Path;
use std::time::Duration;
use wire::sip::{Scheme, Uri};

/// Longest file to send: it is encoded before the call.
const MAX_AUDIO_S: u32 = 600;
/// An address to which the default route is asked for; nothing is sent to it (RFC 5737).
const ANYWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 9);
/// More than a digit takes, with its end packets and the pause behind it.
const DIGIT: Duration = Duration::from_millis(300);
/// Priority under SCHED_FIFO in real-time mode: below the threads of the kernel that serve interrupts (50).
pub(crate) const REALTIME_PRIORITY: u32 = 49;

/// An account at a registrar or proxy.
#[derive(Clone, PartialEq, Eq)]
pub struct PhoneAccount {
    /// Address of record: `sip:user@domain`.
    pub uri: String,
    /// User name of the digest, if it differs from that of the URI.
    pub login: Option<String>,
    /// Password; empty for none.
    pub password: String,
    /// Requested lifetime of the registration in seconds; `None`: no registration.
    pub expires_s: Option<u32>,
}

impl std::fmt::Debug for PhoneAccount {
    /// Omits the password.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PhoneAccount")
            .field("uri", &self.uri)
            .finish_non_exhaustive()
    }
}

/// Names the rights that are missing for the real-time mode.
///
/// # Errors
/// If any is missing.
pub(super) fn check_real_time() -> Result<usize, LabError> {
    let mut missing = Vec::new();
    if let Err(error) = net::may_be_realtime(REALTIME_PRIORITY) {
        missing.push(format!(
            "SCHED_FIFO with priority {REALTIME_PRIORITY} was denied ({error}): CAP_SYS_NICE or RLIMIT_RTPRIO (ulimit -r {REALTIME_PRIORITY})"
        ));
    }
    let cpu = net::allowed_cpus().last().copied();
    let pinned = cpu.map(|cpu| std::thread::spawn(move || net::pin(cpu)).join());
    if !matches!(pinned, Some(Ok(Ok(())))) {
        missing.push("pinning to a CPU was denied: sched_setaffinity".to_owned());
    }
    if let Err(error) = net::lock_memory() {
        missing.push(format!("locking memory was denied ({error})"));
    }
    if missing.is_empty() {
        return Ok(cpu.unwrap_or_default());
    }
    Err(LabError::cannot_run(
        format!("--real-time: {}", missing.join("; ")),
        "run it as root, or with these rights; without --real-time it needs none",
    ))
}

/// A URI of the command line; `sip:` may be left out.
///
/// # Errors
/// It is no SIP URI.
pub(super) fn parsed_uri(text: &str) -> Result<String, LabError> {
    let uri = match text.split_once(':') {
        Some(("sip" | "sips", _)) => text.to_owned(),
        _ => format!("sip:{text}"),
    };
    match Uri::parse(uri.as_bytes()) {
        Some(parsed) if matches!(parsed.scheme, Scheme::Sip | Scheme::Sips) => Ok(uri),
        _ => Err(LabError::bad_input(format!(
            "{text:?} is no SIP URI: write sip:USER@HOST[:PORT]"
        ))),
    }
}

/// The action with a complete URI.
///
/// # Errors
/// The target of a transfer is no SIP URI.
pub(super) fn checked(action: PhoneAction) -> Result<PhoneAction, LabError> {
    match action {
        PhoneAction::Transfer(uri) => {
            let target = parsed_uri(&uri)?;
            // It is written between angle brackets into Refer-To.
            match target
                .contains(|c: char| c.is_whitespace() || c.is_control() || "<>\"".contains(c))
            {
                true => Err(LabError::bad_input(format!(
                    "{uri:?} is no SIP URI: write sip:USER@HOST[:PORT]"
                ))),
                false => Ok(PhoneAction::Transfer(target)),
            }
        }
        action => Ok(action),
    }
}

/// The planned actions with complete URIs.
///
/// # Errors
/// As [`checked`].
pub(super) fn actions(options: &PhoneOptions) -> Result<Vec<(Duration, PhoneAction)>, LabError> {
    let actions = options.actions.iter();
    actions
        .map(|(at, action)| Ok((*at, checked(action.clone())?)))
        .collect()
}

/// Duration of the call, if it has one: not before the planned digits are sent.
fn call_limit(options: &PhoneOptions) -> Option<Duration> {
    let limit = options.limit?;
    let sent = options.actions.iter().map(|(at, action)| match action {
        PhoneAction::Digits(digits) => *at + DIGIT * (digits.len() as u32 + 1),
        _ => Duration::ZERO,
    });
    sent.chain([limit]).max()
}

fn transport_of(uri: &Uri<'_>, options: &PhoneOptions) -> Result<Transport, LabError> {
    let named = uri.params.get(b"transport").map(<[u8]>::to_ascii_lowercase);
    let named = match named.as_deref() {
        None => None,
        Some(b"udp") => Some(Transport::Udp),
        Some(b"tcp") => Some(Transport::Tcp),
        Some(b"tls") => Some(Transport::Tls),
        Some(other) => {
            return Err(LabError::bad_input(format!(
                "the transport {:?} of the URI is not supported: udp, tcp, tls",
                String::from_utf8_lossy(other)
            )));
        }
    };
    let secure = uri.scheme == Scheme::Sips;
    match options.transport.or(named) {
        Some(Transport::Udp | Transport::Tcp) if secure => {
            Err(LabError::bad_input("a sips URI needs --transport tls"))
        }
        Some(transport) => Ok(transport),
        None if secure => Ok(Transport::Tls),
        None => Ok(Transport::Udp),
    }
}

/// The port of SIP (RFC 3261 section 19.1.2).
fn port_of(transport: Transport) -> u16 {
    match transport {
        Transport::Tls => 5061,
        _ => 5060,
    }
}

/// Refuses options of TLS that would have no effect.
fn check_tls(options: &PhoneOptions, transport: Transport) -> Result<(), LabError> {
    let tls = &options.tls;
    let named = [
        ("--ca", tls.ca.is_some()),
        ("--certificate", tls.certificate.is_some()),
        ("--tls-name", !tls.name.is_empty()),
        ("--insecure", !tls.verify),
    ];
    match named.iter().find(|(_, named)| *named) {
        Some((option, _)) if transport != Transport::Tls => Err(LabError::bad_input(format!(
            "{option} has no effect over {}: add --transport tls, or a sips: URI",
            transport.uri_name().to_uppercase()
        ))),
        _ => Ok(()),
    }
}

fn resolve(host: &str, port: u16) -> Result<SocketAddr, LabError> {
    let plain = host.trim_start_matches('[').trim_end_matches(']');
    let found = (plain, port).to_socket_addrs();
    let first = found
        .map_err(|error| error.to_string())
        .and_then(|mut all| all.next().ok_or_else(|| "it has no address".to_owned()));
    first.map_err(|error| {
        LabError::cannot_run(
            format!("cannot resolve {host}: {error}"),
            "name a host with an A or AAAA record, or the next hop with --proxy",
        )
    })
}

/// `host[:port]`, IPv6 addresses in brackets.
fn split_host(text: &str, default: u16) -> Result<(String, u16), LabError> {
    let bad = || LabError::bad_input(format!("{text:?} is no HOST[:PORT]"));
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
            (host, port.parse().map_err(|_| bad())?)
        }
        _ => (text, default),
    };
    if host.is_empty() {
        return Err(bad());
    }
    Ok((host.to_owned(), port))
}

/// The peer that the options name; `None` for a phone that only waits for calls.
///
/// # Errors
/// A URI is invalid, or its host has no address.
pub(super) fn peer(options: &PhoneOptions) -> Result<Option<PhonePeer>, LabError> {
    let text = match (&options.task, &options.account) {
        (PhoneTask::Call(uri), _) => uri,
        (_, Some(account)) if account.expires_s.is_some() => &account.uri,
        _ => return Ok(None),
    };
    let text = parsed_uri(text)?;
    let uri = Uri::parse(text.as_bytes())
        .ok_or_else(|| LabError::bad_input(format!("{text:?} is no SIP URI")))?;
    let transport = transport_of(&uri, options)?;
    let host = uri.host.to_string();
    let default = port_of(transport);
    let (next, port) = match &options.proxy {
        Some(proxy) => split_host(proxy, default)?,
        None => (host.clone(), uri.port.unwrap_or(default)),
    };
    let domain = match uri.port {
        Some(port) => format!("{host}:{port}"),
        None => host.clone(),
    };
    Ok(Some(PhonePeer {
        address: resolve(&next, port)?,
        name: options.tls.name_for(&next).to_owned(),
        domain,
        user: uri
            .user
            .map(|user| String::from_utf8_lossy(user).into_owned())
            .unwrap_or_default(),
        transport,
    }))
}

/// The local address: a concrete one, as it is written into messages.
fn local_address(
    options: &PhoneOptions,
    peer: Option<&PhonePeer>,
    transport: Transport,
) -> Result<SocketAddr, LabError> {
    // A phone without a registrar is called at the port of SIP; behind ESP no other program has its ports.
    let default = match (peer, &options.esp) {
        (Some(_), None) => 0,
        _ => port_of(transport),
    };
    let (ip, port) = match &options.local {
        Some(text) => {
            let (host, port) = split_host(text, default)?;
            let plain = host.trim_start_matches('[').trim_end_matches(']');
            let ip: IpAddr = plain.parse().map_err(|_| {
                LabError::bad_input(format!("--local {text:?}: ADDRESS[:PORT] is needed"))
            })?;
            if ip.is_unspecified() {
                return Err(LabError::bad_input(
                    "--local: a concrete address is needed, as it is written into messages",
                ));
            }
            if let Some(peer) = peer.filter(|peer| peer.address.is_ipv4() != ip.is_ipv4()) {
                return Err(LabError::bad_input(format!(
                    "--local {ip} and the peer {} are addresses of two families",
                    peer.address.ip()
                )));
            }
            (ip, port)
        }
        None if options.esp.as_ref().is_some_and(|esp| esp.tunnel) => {
            (inner_address(options)?, default)
        }
        None => {
            let towards = peer.map_or(ANYWHERE, |peer| peer.address);
            let ip = match (local_ip_towards(towards), peer) {
                (Ok(ip), _) => ip,
                (Err(_), None) => Ipv4Addr::LOCALHOST.into(),
                (Err(error), Some(_)) => return Err(error),
            };
            (ip, default)
        }
    };
    if port != 0 || options.esp.is_some() {
        return Ok(SocketAddr::new(ip, if port == 0 { default } else { port }));
    }
    free_port(ip).map_err(|error| {
        LabError::cannot_run(
            format!("no free port at {ip}: {error}"),
            "name one with --local ADDRESS:PORT",
        )
    })
}

/// The address inside of a tunnel, if no option names it: that of a tunnel between hosts is the outer one.
fn inner_address(options: &PhoneOptions) -> Result<IpAddr, LabError> {
    match options.esp.as_ref().map(|esp| &esp.keys) {
        Some(PhoneEspKeys::Exchange(exchange)) if exchange.remote_networks().is_empty() => {
            Ok(exchange.local().ip())
        }
        _ => Err(LabError::bad_input(
            "ESP in tunnel mode needs --local ADDRESS: the phone's address inside of the tunnel",
        )),
    }
}

/// A port that is free for UDP and TCP. A client over TLS writes it into its Contact without listening at it.
fn free_port(ip: IpAddr) -> std::io::Result<SocketAddr> {
    let mut last = std::io::Error::other("no attempt");
    for _ in 0..16 {
        let address = UdpSocket::bind((ip, 0))?.local_addr()?;
        match TcpListener::bind(address) {
            Ok(_) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Reads the file to send.
///
/// # Errors
/// It cannot be read, is no WAV file, too long, or its rate cannot be converted.
fn audio(path: &Path, options: &PhoneOptions) -> Result<PhoneAudio, LabError> {
    let bad = |error: String| LabError::bad_input(format!("{}: {error}", path.display()));
    let file = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
    let wav = Wav::parse(&file).map_err(|error| bad(error.to_string()))?;
    let seconds = wav.frames() / wav.rate.max(1) as usize;
    if seconds > MAX_AUDIO_S as usize {
        return Err(bad(format!(
            "{seconds} s of audio; at most {MAX_AUDIO_S} s are sent, as it is encoded before the call (--loop repeats a shorter file)"
        )));
    }
    if wav.frames() == 0 {
        return Err(bad("there are no samples in it".to_owned()));
    }
    for format in &options.codecs {
        let rate = format.kind().rate_near(wav.rate);
        Resampler::new(wav.rate, rate)
            .map_err(|_| bad(format!("{} Hz cannot be converted to {rate} Hz", wav.rate)))?;
    }
    Ok(PhoneAudio {
        samples: wav.mono(),
        rate: wav.rate,
        repeats: options.repeats,
    })
}

fn login(options: &PhoneOptions) -> Result<Option<LoginTemplates>, LabError> {
    let Some(account) = &options.account else {
        return Ok(None);
    };
    let user = match &account.login {
        Some(user) => user.clone(),
        None => user_of(&account.uri)?,
    };
    Ok(Some(LoginTemplates {
        user: escape(&user),
        password: escape(&account.password),
    }))
}

fn user_of(uri: &str) -> Result<String, LabError> {
    let text = parsed_uri(uri)?;
    let user = Uri::parse(text.as_bytes()).and_then(|uri| uri.user);
    user.map(|user| String::from_utf8_lossy(user).into_owned())
        .ok_or_else(|| LabError::bad_input(format!("{uri:?} names no user: sip:USER@HOST")))
}

fn outgoing(options: &PhoneOptions, peer: &PhonePeer) -> Result<OutgoingCallPlan, LabError> {
    let from = match &options.account {
        Some(account) => user_of(&account.uri)?,
        None => "hornwork".to_owned(),
    };
    Ok(OutgoingCallPlan {
        name: "phone".to_owned(),
        pace: ArrivalProcess::Constant { rate: 1.0 },
        after: Duration::ZERO,
        bounds: Bounds {
            total: Some(1),
            ..Bounds::default()
        },
        duration: None,
        hold: HoldTime::Fixed(call_limit(options).map_or(0.0, |limit| limit.as_secs_f64())),
        dial: escape(&peer.user),
        from: escape(&from),
        cycle: 0,
        login: login(options)?,
        domain: peer.domain.clone(),
        transport: peer.transport,
        connections: 1,
        hang_up: match options.limit {
            Some(_) => HangUp::Caller,
            None => HangUp::Callee,
        },
        sends: MediaKind::Speech,
        expects: MediaKind::Speech,
        codec: first_codec(options),
        participants: 0,
        srtp: options.srtp == SrtpUse::Required,
        timed: false,
        cancel_percent: 0.0,
        hold_percent: 0.0,
        listen_percent: 0.0,
        ring_limit: options.ring_limit.unwrap_or(Duration::from_secs(60)),
        flow: CallFlow::Plain,
        reserve: Duration::ZERO,
    })
}

fn first_codec(options: &PhoneOptions) -> codec::Format {
    options
        .codecs
        .first()
        .copied()
        .unwrap_or(codec::Format::Pcma)
}

fn registration(
    options: &PhoneOptions,
    peer: &PhonePeer,
) -> Result<Option<RegistrationPlan>, LabError> {
    let Some((account, expires)) = options
        .account
        .as_ref()
        .and_then(|account| Some((account, account.expires_s?)))
    else {
        return Ok(None);
    };
    let mut login = login(options)?.unwrap_or_else(|| LoginTemplates {
        user: String::new(),
        password: String::new(),
    });
    // The address of record has the user of the URI; the host's plan has one name for both.
    let user = user_of(&account.uri)?;
    if account.login.as_ref().is_some_and(|login| *login != user) {
        return Err(LabError::bad_input(
            "a registration uses the user of its URI: --login is for calls only",
        ));
    }
    login.user = escape(&user);
    Ok(Some(RegistrationPlan {
        name: "phone".to_owned(),
        pace: ArrivalProcess::Constant { rate: 1.0 },
        users: 1,
        login,
        domain: peer.domain.clone(),
        expires,
        refresh: None,
        follows_expiry: true,
        refreshes: u32::MAX,
        refresh_rate: 0.0,
        remove: false,
        transport: peer.transport,
        connections: 1,
    }))
}

fn answering(options: &PhoneOptions) -> AnswerPlan {
    let mut plan = AnswerPlan::new("phone", MediaKind::Speech);
    plan.answer = options.answer_after;
    plan.expects = MediaKind::Speech;
    plan.codec = first_codec(options);
    plan.hang_up = call_limit(options).map(|limit| HoldTime::Fixed(limit.as_secs_f64()));
    plan
}

/// The plan of a phone at `local` that calls `to` and plays speech in G.711, for trials in virtual time.
///
/// # Errors
/// Never for addresses.
pub(crate) fn voice_call(
    local: SocketAddr,
    to: SocketAddr,
    duration: Duration,
) -> Result<HostPlan, LabError> {
    let options = PhoneOptions {
        task: PhoneTask::Call(format!("sip:600@{to}")),
        account: None,
        transport: Some(Transport::Udp),
        proxy: None,
        local: Some(local.to_string()),
        esp: None,
        tls: TlsSettings::default(),
        codecs: vec![codec::Format::Pcma],
        srtp: SrtpUse::Off,
        wav_in: None,
        repeats: true,
        wav_out: None,
        speech_reference: None,
        sound_in: None,
        sound_out: None,
        max_playout_delay: Duration::from_millis(200),
        limit: Some(duration),
        ring_limit: None,
        answer_after: Duration::ZERO,
        actions: Vec::new(),
        reads_commands: false,
        json: None,
        min_mos: None,
        real_time: false,
    };
    let peer = peer(&options)?;
    let mut plan = plan(&options, peer.as_ref())?;
    if let Some(phone) = &mut plan.phone {
        phone.audio = Some(PhoneAudio {
            samples: codec::speech::speech().to_vec(),
            rate: codec::speech::RATE,
            repeats: true,
        });
    }
    Ok(plan)
}

/// The plan of the host.
///
/// # Errors
/// An option is invalid, or an address cannot be used.
pub(super) fn plan(options: &PhoneOptions, peer: Option<&PhonePeer>) -> Result<HostPlan, LabError> {
    let transport = peer.map_or(options.transport.unwrap_or(Transport::Udp), |peer| {
        peer.transport
    });
    if let Some(esp) = &options.esp {
        super::esp::check_transport(esp, transport)?;
    }
    check_tls(options, transport)?;
    let mut plan = HostPlan::new("phone", local_address(options, peer, transport)?);
    // RTP and RTCP; ESP above the kernel has one media socket, on which RTCP passes if the peer agrees (rtcp-mux).
    let above_kernel = options.esp.is_some() && transport == Transport::Udp;
    plan.media_sockets = if above_kernel { 1 } else { 2 };
    plan.stream = (transport != Transport::Udp).then_some(transport);
    // Over TLS a phone with a peer is reached on its own connection, so that it needs no certificate.
    plan.listens = transport != Transport::Tls || peer.is_none();
    plan.stream_peer = peer.map(|peer| StreamPeer {
        address: peer.address,
        name: peer.name.clone(),
    });
    let audio = options
        .wav_in
        .as_ref()
        .map(|path| audio(path, options))
        .transpose()?;
    plan.phone = Some(PhonePlan {
        codecs: options.codecs.clone(),
        srtp: options.srtp,
        audio,
        live: options.sound_in.clone(),
        records: options.wav_out.is_some() || options.sound_out.is_some(),
        max_playout_delay: options.max_playout_delay,
    });
    match (&options.task, peer) {
        (PhoneTask::Call(_), Some(peer)) => plan.calls = vec![outgoing(options, peer)?],
        (PhoneTask::Answer, Some(peer)) => {
            plan.registrations = registration(options, peer)?;
            plan.answers = Some(answering(options));
        }
        (PhoneTask::Answer, None) => plan.answers = Some(answering(options)),
        (PhoneTask::Register, Some(peer)) => plan.registrations = registration(options, peer)?,
        (PhoneTask::Call(_) | PhoneTask::Register, None) => {
            return Err(LabError::bad_input("a URI is needed: sip:USER@HOST"));
        }
    }
    Ok(plan)
}
