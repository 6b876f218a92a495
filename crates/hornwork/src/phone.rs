//! `hornwork phone`: a softphone.

use crate::phone_ike::PhoneIke;
use crate::sound_card::{Cards, SoundOptions};
use clap::{Args, Subcommand, ValueEnum};
use codec::{Format, Kind};
use engine::Transport;
use lab::host::SrtpUse;
use lab::phone::{
    PhoneAccount, PhoneAction, PhoneEspKeys, PhoneEspOptions, PhoneOptions, PhoneTask,
};
use lab::tls::TlsSettings;
use lab::{LabError, RunVerdict};
use protect::esp::{AddressPrefix, EspCarrier, VoiceShortcut};
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Subcommands of `hornwork phone`.
#[derive(Debug, Subcommand)]
pub enum PhoneSubcommand {
    /// Register a user, refresh the registration, and remove it at the end.
    Register(Box<RegisterOptions>),
    /// Call a URI; prints the statistics of the call at its end.
    Call(Box<CallOptions>),
    /// Answer one call; prints its statistics at its end.
    Answer(Box<AnswerOptions>),
    /// List the sound cards for --sound-in and --sound-out.
    #[command(
        after_help = "Example: hornwork phone sound\n\nExit status 0: listed, 3: this build has no sound cards."
    )]
    Sound,
    /// Write the built-in speech to a WAV file, for --wav-in.
    #[command(
        after_help = "Example: hornwork phone speech hello.wav\n\nExit status 0: written, 3: the file cannot be written."
    )]
    Speech {
        /// The file: 16-bit PCM, 8 kHz; replaced if it exists.
        file: PathBuf,
    },
}

/// Options of `hornwork phone register`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork phone register sip:601@127.0.0.1:5060 --password-file 601.password --seconds 2\n\n\
                  Exit status 0: registered, 1: refused or no answer, 2: invalid input, 3: could not run, 130: interrupted."
)]
pub struct RegisterOptions {
    /// Address of record: sip:USER@DOMAIN[:PORT].
    uri: String,
    #[command(flatten)]
    password: PasswordOptions,
    /// Requested lifetime in seconds; refreshed after half of the granted one.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    expires: u32,
    /// Remove the registration and end after this time [default: at Ctrl-C].
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Write the result as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    line: LineOptions,
}

/// Options of `hornwork phone call`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork phone call sip:600@127.0.0.1:5060 --wav-out heard.wav --seconds 3\n\n\
                  Exit status 0: done, 1: the call or its transfer failed, or its MOS is below --min-mos, 2: invalid input,\n\
                  3: could not run, 130: interrupted."
)]
pub struct CallOptions {
    /// The called URI: sip:USER@HOST[:PORT][;transport=tcp|tls], or sips:.
    uri: String,
    /// Calling user: sip:USER@DOMAIN; its user is written into From and used for the digest.
    #[arg(long, value_name = "URI")]
    user: Option<String>,
    /// User name of the digest, if it is not that of --user.
    #[arg(long, value_name = "NAME", requires = "user")]
    login: Option<String>,
    #[command(flatten)]
    password: PasswordOptions,
    /// Longest ringing.
    #[arg(long, value_name = "SECONDS", default_value = "60", allow_negative_numbers = true, value_parser = seconds)]
    ring_seconds: Duration,
    #[command(flatten)]
    call: InCallOptions,
    #[command(flatten)]
    line: LineOptions,
}

/// Options of `hornwork phone answer`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: hornwork phone answer --local 127.0.0.1:5062 --wav-out heard.wav --wait 2 --seconds 3\n\n\
                  Exit status as for `hornwork phone call`; 1 without a call in the time of --wait."
)]
pub struct AnswerOptions {
    /// Register this user first: sip:USER@DOMAIN[:PORT].
    #[arg(long, value_name = "URI")]
    register: Option<String>,
    #[command(flatten)]
    password: PasswordOptions,
    /// Requested lifetime of the registration in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    expires: u32,
    /// Longest wait for a call [default: until Ctrl-C].
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    wait: Option<Duration>,
    /// Time from the INVITE to the answer.
    #[arg(long, value_name = "SECONDS", default_value = "0", allow_negative_numbers = true, value_parser = seconds)]
    answer_after: Duration,
    #[command(flatten)]
    call: InCallOptions,
    #[command(flatten)]
    line: LineOptions,
}

/// The password of a user.
#[derive(Debug, Args)]
pub struct PasswordOptions {
    /// File whose first line is the password.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["password_env", "password"])]
    password_file: Option<PathBuf>,
    /// Environment variable with the password.
    #[arg(long, value_name = "NAME", conflicts_with = "password")]
    password_env: Option<String>,
    /// The password; other users of this machine see it in the list of processes.
    #[arg(long)]
    password: Option<String>,
}

/// Options within a call.
#[derive(Debug, Args)]
pub struct InCallOptions {
    /// Audio to send: a WAV file of at most 600 s, at any usual sample rate; silence without it, and after its end.
    /// `hornwork phone speech` writes one.
    #[arg(long, value_name = "FILE")]
    wav_in: Option<PathBuf>,
    /// Repeat the file of --wav-in.
    #[arg(long = "loop", requires = "wav_in")]
    repeats: bool,
    /// Write the received audio, as played after the jitter buffer, to this WAV file.
    #[arg(long, value_name = "FILE")]
    wav_out: Option<PathBuf>,
    /// Compare the recording with this WAV file, which the peer plays, by the method of `hornwork lab speech`.
    #[arg(long, value_name = "FILE", requires = "wav_out")]
    speech_reference: Option<PathBuf>,
    #[command(flatten)]
    sound: SoundOptions,
    /// Longest delay of the jitter buffer of --wav-out and --sound-out, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = clap::value_parser!(u64).range(20..=1000))]
    jitter_buffer_ms: u64,
    /// Hang up this long after the answer, or later, once the digits of --dtmf are sent [default: when the peer hangs
    /// up, or at Ctrl-C].
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    seconds: Option<Duration>,
    /// Codecs in order of preference: opus, g722, pcma, pcmu, g729. An answer keeps the order of the caller.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = codec_named,
        default_value = "opus,g722,pcma,pcmu,g729"
    )]
    codec: Vec<Kind>,
    /// Media security [default: off for a call, accept for an answer].
    #[arg(long)]
    srtp: Option<SrtpChoice>,
    /// Send these digits as telephone events (RFC 4733), one second after the answer.
    #[arg(long, value_name = "DIGITS", value_parser = digits)]
    dtmf: Option<String>,
    /// Put the call on hold this long after the answer.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    hold_at: Option<Duration>,
    /// Resume the call this long after the answer.
    #[arg(long, value_name = "SECONDS", requires = "hold_at", allow_negative_numbers = true, value_parser = seconds)]
    resume_at: Option<Duration>,
    /// Transfer the call to a URI (blind, by REFER) this long after the answer.
    #[arg(long, num_args = 2, allow_negative_numbers = true, value_names = ["SECONDS", "URI"])]
    transfer_at: Option<Vec<String>>,
    /// Read commands from standard input even if it is no terminal: h, t URI, digits, q, each with Enter.
    #[arg(long)]
    commands: bool,
    /// Write the statistics as JSON to this file; - is standard output.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Lowest acceptable mean opinion score; below it the exit status is 1.
    #[arg(long, value_name = "MOS", allow_negative_numbers = true, value_parser = mean_opinion_score)]
    min_mos: Option<f64>,
    /// Pin the thread of the phone, run it under SCHED_FIFO, poll before deadlines, lock memory; refused if a right is
    /// missing.
    #[arg(long)]
    real_time: bool,
}

/// Options of the signalling.
#[derive(Debug, Args)]
pub struct LineOptions {
    /// Transport of SIP [default: that of the URI, or udp].
    #[arg(long)]
    transport: Option<TransportChoice>,
    /// Next hop instead of the host of the URI.
    #[arg(long, value_name = "HOST[:PORT]")]
    proxy: Option<String>,
    /// Local address [default: that of the route to the peer; for an answer without --register port 5060, over TLS
    /// 5061].
    #[arg(long, value_name = "ADDRESS[:PORT]")]
    local: Option<String>,
    #[command(flatten)]
    esp: EspOptions,
    /// TLS: trusted authorities (PEM) instead of the system's.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// TLS: own certificate with its chain (PEM).
    #[arg(long, value_name = "FILE", requires = "key")]
    certificate: Option<PathBuf>,
    /// TLS: private key of the certificate (PEM).
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// TLS: name that the certificate of the peer must contain [default: the host].
    #[arg(long, value_name = "NAME")]
    tls_name: Option<String>,
    /// TLS: accept any certificate of the peer.
    #[arg(long)]
    insecure: bool,
}

/// ESP around SIP and media.
#[derive(Debug, Args)]
pub struct EspOptions {
    /// ESP (IPsec) around SIP and media in this program, with manual keys: a file in the format of Wireshark's esp_sa
    /// table with one line for each direction. SIP over TCP and TLS needs --esp-mode tunnel.
    #[arg(long, value_name = "KEYFILE")]
    esp: Option<PathBuf>,
    /// ESP with keys of IKEv2, by strongSwan's daemon: a file with the peer, its secret or certificates, and the
    /// networks behind it (docs/how-to/phone.md). SIP over TCP and TLS needs CAP_NET_ADMIN, for a TUN device.
    #[arg(long, value_name = "FILE", conflicts_with = "esp")]
    ike: Option<PathBuf>,
    /// ESP: transport mode between the two phones, or tunnel mode around addresses of an own network [default:
    /// transport].
    #[arg(long, value_name = "MODE", requires = "esp", conflicts_with = "ike")]
    esp_mode: Option<EspModeChoice>,
    /// ESP: carrier [default: ip if the right for raw sockets exists, else udp].
    #[arg(long, value_name = "CARRIER", requires = "esp", conflicts_with = "ike")]
    esp_over: Option<EspCarrierChoice>,
    /// ESP: local address of its packets, and port in UDP [default: --local, or in tunnel mode the key file; port
    /// 4500].
    #[arg(
        long,
        value_name = "ADDRESS[:PORT]",
        requires = "esp",
        conflicts_with = "ike"
    )]
    esp_local: Option<String>,
    /// ESP: address of the peer, and port in UDP [default: the key file, or the called host; port 4500].
    #[arg(
        long,
        value_name = "ADDRESS[:PORT]",
        requires = "esp",
        conflicts_with = "ike"
    )]
    esp_peer: Option<String>,
    /// ESP: a shortcut of voice between two phones of this program. A call is refused if the peer does not have the
    /// same.
    #[arg(
        long,
        value_name = "SHORTCUT",
        requires = "esp",
        conflicts_with = "ike"
    )]
    esp_shortcut: Option<EspShortcutChoice>,
    /// ESP below SIP over TCP or TLS, in tunnel mode: an address or network behind the tunnel, for example 10.2.0.0/24;
    /// may be repeated [default: the called host]. Needs CAP_NET_ADMIN, as a TUN device carries the packets.
    #[arg(long, value_name = "NETWORK", requires = "esp", conflicts_with = "ike")]
    esp_remote: Vec<AddressPrefix>,
    /// ESP: allow algorithms that must not be used any more (RFC 8221), and NULL encryption.
    #[arg(long, requires = "esp", conflicts_with = "ike")]
    esp_allow_weak: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum EspModeChoice {
    Transport,
    Tunnel,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EspCarrierChoice {
    /// IP protocol 50; needs CAP_NET_RAW.
    Ip,
    /// UDP encapsulation (RFC 3948).
    Udp,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EspShortcutChoice {
    /// RTP directly in ESP, without UDP.
    Rtp,
    /// RTP without IP and UDP, from ESP straight to the media handler.
    Direct,
}

impl EspOptions {
    fn keys(&self) -> Result<Option<PhoneEspKeys>, LabError> {
        Ok(match (&self.esp, &self.ike) {
            (Some(file), _) => Some(PhoneEspKeys::File(file.clone())),
            (None, Some(file)) => Some(PhoneEspKeys::Exchange(Arc::new(PhoneIke::read(file)?))),
            (None, None) => None,
        })
    }

    fn options(&self) -> Result<Option<PhoneEspOptions>, LabError> {
        let Some(keys) = self.keys()? else {
            return Ok(None);
        };
        Ok(Some(PhoneEspOptions {
            tunnel: self.ike.is_some() || self.esp_mode == Some(EspModeChoice::Tunnel),
            keys,
            carrier: self.esp_over.map(|carrier| match carrier {
                EspCarrierChoice::Ip => EspCarrier::Ip,
                EspCarrierChoice::Udp => EspCarrier::Udp,
            }),
            local: self.esp_local.clone(),
            peer: self.esp_peer.clone(),
            allow_weak: self.esp_allow_weak,
            shortcut: self.esp_shortcut.map(|shortcut| match shortcut {
                EspShortcutChoice::Rtp => VoiceShortcut::WithoutUdp,
                EspShortcutChoice::Direct => VoiceShortcut::Direct,
            }),
            remote: self.esp_remote.clone(),
        }))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SrtpChoice {
    /// RTP only.
    Off,
    /// Offer RTP, accept both.
    Accept,
    /// SRTP only, with keys in the session description (RFC 4568).
    Sdes,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum TransportChoice {
    Udp,
    Tcp,
    Tls,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text
        .parse()
        .map_err(|_| "not a number of seconds".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if seconds <= 1e9 => Ok(duration),
        _ => Err("not from 0 to 1000000000 seconds".to_owned()),
    }
}

/// A mean opinion score (ITU-T P.800.1). 5 is more than any call has: such a bound tests the exit status.
fn mean_opinion_score(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(mos) if (0.0..=5.0).contains(&mos) => Ok(mos),
        _ => Err("not from 0 to 5".to_owned()),
    }
}

fn digits(text: &str) -> Result<String, String> {
    match PhoneAction::parse(text) {
        Ok(PhoneAction::Digits(digits)) if digits.len() <= 64 => Ok(digits),
        _ => Err("1 to 64 of 0123456789*#ABCD".to_owned()),
    }
}

/// A codec by its name, as in SDP.
fn codec_named(name: &str) -> Result<Kind, String> {
    Kind::of_name(name).ok_or_else(|| {
        let names = Kind::ALL.map(|kind| kind.name().to_ascii_lowercase());
        format!("codecs are {}", names.join(", "))
    })
}

fn format(kind: Kind) -> Result<Format, LabError> {
    match kind.is_available() {
        // Silence is sent as audio, so that the other side has no gaps.
        true if kind == Kind::G729 => Ok(Format::G729 { annex_b: false }),
        // Playout recovers lost packets from the redundancy of Opus.
        true => Ok(Format::of_decoder(kind)),
        false => Err(LabError::cannot_run(
            format!("this build has no {}", kind.name()),
            "build it with libbcg729-dev, or name other codecs with --codec",
        )),
    }
}

/// The codecs; a missing library is an error only if the codec was named.
fn formats(names: &[Kind]) -> Result<Vec<Format>, LabError> {
    let all = names.len() == Kind::ALL.len();
    let usable = |name: &&Kind| !all || format(**name).is_ok();
    names
        .iter()
        .filter(usable)
        .map(|name| format(*name))
        .collect()
}

impl PasswordOptions {
    fn read(&self) -> Result<String, LabError> {
        match (&self.password_file, &self.password_env, &self.password) {
            (Some(file), _, _) => {
                let text = std::fs::read_to_string(file).map_err(|error| {
                    LabError::bad_input(format!("--password-file {}: {error}", file.display()))
                })?;
                let line = text.lines().next().unwrap_or_default();
                match line.is_empty() {
                    true => Err(LabError::bad_input(format!(
                        "--password-file {}: its first line is empty",
                        file.display()
                    ))),
                    false => Ok(line.to_owned()),
                }
            }
            (_, Some(name), _) => std::env::var(name)
                .map_err(|error| LabError::bad_input(format!("--password-env {name}: {error}"))),
            (_, _, password) => Ok(password.clone().unwrap_or_default()),
        }
    }
}

impl LineOptions {
    fn tls(&self) -> TlsSettings {
        TlsSettings {
            verify: !self.insecure,
            ca: self.ca.clone(),
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            name: self.tls_name.clone().unwrap_or_default(),
        }
    }

    /// Options of a phone that registers only.
    fn phone(&self, task: PhoneTask) -> Result<PhoneOptions, LabError> {
        Ok(PhoneOptions {
            task,
            account: None,
            transport: self.transport.map(|name| match name {
                TransportChoice::Udp => Transport::Udp,
                TransportChoice::Tcp => Transport::Tcp,
                TransportChoice::Tls => Transport::Tls,
            }),
            proxy: self.proxy.clone(),
            local: self.local.clone(),
            esp: self.esp.options()?,
            tls: self.tls(),
            codecs: formats(&[Kind::Pcma])?,
            srtp: SrtpUse::Off,
            wav_in: None,
            repeats: false,
            wav_out: None,
            speech_reference: None,
            sound_in: None,
            sound_out: None,
            max_playout_delay: Duration::from_millis(200),
            limit: None,
            ring_limit: None,
            answer_after: Duration::ZERO,
            actions: Vec::new(),
            reads_commands: false,
            json: None,
            min_mos: None,
            real_time: false,
        })
    }
}

impl InCallOptions {
    fn apply(self, phone: &mut PhoneOptions, default: SrtpUse) -> Result<Cards, LabError> {
        phone.actions = self.actions()?;
        phone.codecs = formats(&self.codec)?;
        phone.srtp = match self.srtp {
            None => default,
            Some(SrtpChoice::Off) => SrtpUse::Off,
            Some(SrtpChoice::Accept) => SrtpUse::Accepted,
            Some(SrtpChoice::Sdes) => SrtpUse::Required,
        };
        phone.wav_in = self.wav_in;
        phone.repeats = self.repeats;
        phone.wav_out = self.wav_out;
        phone.speech_reference = self.speech_reference;
        phone.max_playout_delay = Duration::from_millis(self.jitter_buffer_ms);
        phone.limit = self.seconds;
        phone.reads_commands = self.commands || std::io::stdin().is_terminal();
        phone.json = self.json;
        phone.min_mos = self.min_mos;
        phone.real_time = self.real_time;
        Cards::open(&self.sound, phone)
    }

    fn actions(&self) -> Result<Vec<(Duration, PhoneAction)>, LabError> {
        let mut actions = Vec::new();
        let digits = self.dtmf.clone().map(PhoneAction::Digits);
        actions.extend(digits.map(|digits| (Duration::from_secs(1), digits)));
        if let (Some(hold), Some(resume)) = (self.hold_at, self.resume_at)
            && resume <= hold
        {
            return Err(LabError::bad_input(
                "--resume-at: the call is resumed after --hold-at, not before it",
            ));
        }
        actions.extend(self.hold_at.map(|at| (at, PhoneAction::Hold(true))));
        actions.extend(self.resume_at.map(|at| (at, PhoneAction::Hold(false))));
        if let Some([at, uri]) = self.transfer_at.as_deref() {
            let at = seconds(at)
                .map_err(|error| LabError::bad_input(format!("--transfer-at {at}: {error}")))?;
            actions.push((at, PhoneAction::Transfer(uri.clone())));
        }
        Ok(actions)
    }
}

/// `hornwork phone`.
pub fn run(command: PhoneSubcommand) -> Result<RunVerdict, LabError> {
    // Sound cards work until the phone has ended.
    let (options, _cards) = match command {
        PhoneSubcommand::Register(options) => (register(*options)?, None),
        PhoneSubcommand::Call(options) => call(*options)?,
        PhoneSubcommand::Answer(options) => answer(*options)?,
        PhoneSubcommand::Sound => {
            lab::output::print(&crate::sound_card::list()?);
            return Ok(RunVerdict::NotJudged);
        }
        PhoneSubcommand::Speech { file } => {
            speech(&file)?;
            return Ok(RunVerdict::NotJudged);
        }
    };
    lab::phone::run(&options)
}

fn speech(file: &Path) -> Result<(), LabError> {
    let samples = codec::speech::speech();
    let cannot = |error: &dyn std::fmt::Display| {
        LabError::cannot_run(
            format!("{}: {error}", file.display()),
            "name a writable file",
        )
    };
    let wav = codec::wav::write(codec::wav::Encoding::Pcm16, codec::speech::RATE, 1, samples)
        .map_err(|error| cannot(&error))?;
    std::fs::write(file, wav).map_err(|error| cannot(&error))
}

fn register(options: RegisterOptions) -> Result<PhoneOptions, LabError> {
    let mut phone = options.line.phone(PhoneTask::Register)?;
    phone.account = Some(PhoneAccount {
        uri: options.uri,
        login: None,
        password: options.password.read()?,
        expires_s: Some(options.expires),
    });
    phone.limit = options.seconds;
    phone.json = options.json;
    Ok(phone)
}

fn call(options: CallOptions) -> Result<(PhoneOptions, Option<Cards>), LabError> {
    let mut phone = options.line.phone(PhoneTask::Call(options.uri))?;
    let password = options.password.read()?;
    phone.account = match options.user {
        Some(uri) => Some(PhoneAccount {
            uri,
            login: options.login,
            password,
            expires_s: None,
        }),
        None if password.is_empty() => None,
        None => {
            return Err(LabError::bad_input(
                "a password needs a user: --user sip:USER@DOMAIN",
            ));
        }
    };
    phone.ring_limit = Some(options.ring_seconds);
    let cards = options.call.apply(&mut phone, SrtpUse::Off)?;
    Ok((phone, Some(cards)))
}

fn answer(options: AnswerOptions) -> Result<(PhoneOptions, Option<Cards>), LabError> {
    let mut phone = options.line.phone(PhoneTask::Answer)?;
    let password = options.password.read()?;
    phone.account = match options.register {
        Some(uri) => Some(PhoneAccount {
            uri,
            login: None,
            password,
            expires_s: Some(options.expires),
        }),
        None if password.is_empty() => None,
        None => {
            return Err(LabError::bad_input(
                "a password needs a user: --register sip:USER@DOMAIN",
            ));
        }
    };
    phone.ring_limit = options.wait;
    phone.answer_after = options.answer_after;
    let cards = options.call.apply(&mut phone, SrtpUse::Accepted)?;
    Ok((phone, Some(cards)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 7587 section 7.1: the parameter is that of the receiver, and playout recovers packets from the redundancy.
    #[test]
    fn softphone_declares_the_redundancy_that_its_decoder_uses() {
        let opus = format(Kind::Opus).unwrap();
        assert_eq!(opus.fmtp().as_deref(), Some("useinbandfec=1"));
    }
}
