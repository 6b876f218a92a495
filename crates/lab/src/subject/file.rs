//! Subject files: how a system under test is configured, started, probed, measured and stopped.

use crate::error::LabError;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::Path;

/// Most processes of a subject.
const MAX_PROCESSES: usize = 8;
/// Longest start and longest stop, seconds.
const MAX_SECONDS: u32 = 120;
/// Most further probes.
const MAX_WARM_UP: u32 = 10_000;

/// Workloads that a subject takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AcceptedLoad {
    /// Calls.
    Calls,
    /// Registrations.
    Registrations,
}

/// Path of the media of its calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SubjectMedia {
    /// From end to end, past the subject.
    Bypass,
    /// Through the subject.
    Relayed,
    /// The subject answers the calls itself; the called side of the experiment gets none.
    Answered,
}

impl SubjectMedia {
    /// Its name in files and lists.
    pub fn name(self) -> &'static str {
        match self {
            SubjectMedia::Bypass => "bypass",
            SubjectMedia::Relayed => "relayed",
            SubjectMedia::Answered => "answered",
        }
    }
}

/// The test whether a process works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProbeKind {
    /// An OPTIONS over UDP to `@listen@` is answered.
    Sip,
    /// A ping of the ng protocol over UDP to `@control@` is answered.
    Ng,
    /// `@listen@` is bound for UDP: for programs that answer calls only.
    Port,
}

/// A file that is written before the start, with placeholders.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TemplateFile {
    /// Name in the directory of the subject (`@dir@`).
    pub name: String,
    /// Contents.
    pub text: String,
}

/// A process of a subject.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessSpec {
    /// Name in messages, and of its log.
    pub name: String,
    /// Program, looked up in PATH, /usr/sbin and /sbin; `@self@` is this program.
    pub program: String,
    /// Arguments, with placeholders.
    #[serde(default)]
    pub arguments: Vec<String>,
    /// Arguments that print its version.
    #[serde(default)]
    pub version: Vec<String>,
    /// Whether its CPU time and memory, with those of its descendants, count.
    #[serde(default = "yes")]
    pub counts: bool,
    /// The test whether it works.
    pub probe: ProbeKind,
    /// Further probes after the first answer.
    #[serde(default)]
    pub warm_up: u32,
    /// Longest time until the probe is answered, seconds.
    #[serde(default = "start_seconds")]
    pub start_s: u32,
    /// Signal that ends it.
    #[serde(default)]
    pub stop: StopSignal,
    /// Time after which it is killed, seconds.
    #[serde(default = "stop_seconds")]
    pub stop_s: u32,
}

/// Signal that ends a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum StopSignal {
    /// SIGTERM.
    #[default]
    Term,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
}

impl StopSignal {
    /// The signal itself.
    pub fn signal(self) -> net::EndSignal {
        match self {
            StopSignal::Term => net::EndSignal::Terminate,
            StopSignal::Int => net::EndSignal::Interrupt,
            StopSignal::Quit => net::EndSignal::Quit,
        }
    }
}

fn yes() -> bool {
    true
}

fn start_seconds() -> u32 {
    10
}

fn stop_seconds() -> u32 {
    3
}

/// A subject file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubjectFile {
    /// Name.
    pub name: String,
    /// One line.
    pub title: String,
    /// Debian package of its program, for the remedy; empty: none.
    #[serde(default)]
    pub package: String,
    /// Workloads that it takes.
    pub takes: Vec<AcceptedLoad>,
    /// Path of the media of its calls.
    pub media: SubjectMedia,
    /// Files that are written before the start.
    #[serde(default)]
    pub file: Vec<TemplateFile>,
    /// Processes, in the order of their start.
    pub process: Vec<ProcessSpec>,
    /// The file itself.
    #[serde(skip)]
    pub text: String,
}

/// Values of the placeholders.
#[derive(Clone, Debug)]
pub struct Values {
    /// Directory of the subject.
    pub dir: String,
    /// This program.
    pub program: String,
    /// SIP address of the subject.
    pub listen: SocketAddr,
    /// Address of the called side.
    pub called: SocketAddr,
    /// A further free address, for commands.
    pub control: SocketAddr,
    /// First and last port for media.
    pub media: [u16; 2],
    /// First and last port of a small second range.
    pub spare: [u16; 2],
}

impl Values {
    fn get(&self, name: &str) -> Option<String> {
        let (base, part) = match name.rsplit_once('_') {
            Some((base, part @ ("ip" | "port" | "first" | "last"))) => (base, part),
            _ => (name, ""),
        };
        let address = match base {
            "listen" => Some(self.listen),
            "called" => Some(self.called),
            "control" => Some(self.control),
            _ => None,
        };
        let ports = match base {
            "media" => Some(self.media),
            "spare" => Some(self.spare),
            _ => None,
        };
        match (base, part, address, ports) {
            ("dir", "", ..) => Some(self.dir.clone()),
            ("self", "", ..) => Some(self.program.clone()),
            (_, "", Some(address), _) => Some(address.to_string()),
            (_, "ip", Some(address), _) => Some(address.ip().to_string()),
            (_, "port", Some(address), _) => Some(address.port().to_string()),
            (_, "first", _, Some([first, _])) => Some(first.to_string()),
            (_, "last", _, Some([_, last])) => Some(last.to_string()),
            _ => None,
        }
    }

    /// Fills the placeholders in a text.
    ///
    /// # Errors
    /// A word between two `@` that is no placeholder.
    pub fn fill(&self, text: &str) -> Result<String, String> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('@') {
            filled.push_str(before);
            let word = after.split_once('@').filter(|(word, _)| {
                !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
            });
            rest = match word {
                None => {
                    filled.push('@');
                    after
                }
                Some((word, tail)) => {
                    let value = self.get(word);
                    filled.push_str(&value.ok_or_else(|| {
                        format!(
                            "@{word}@ is no placeholder: there are @dir@, @self@, @listen@, @called@, @control@ (each with _ip and _port), \
                             @media_first@, @media_last@, @spare_first@, @spare_last@"
                        )
                    })?);
                    tail
                }
            };
        }
        filled.push_str(rest);
        Ok(filled)
    }

    /// Values that only serve to check a file.
    fn example() -> Values {
        let address = SocketAddr::from(([127, 0, 0, 1], 5060));
        Values {
            dir: "/tmp".to_owned(),
            program: "hornwork".to_owned(),
            listen: address,
            called: address,
            control: address,
            media: [20_000, 20_001],
            spare: [20_002, 20_003],
        }
    }
}

/// Whether a name can be a file name of its own.
fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    !name.is_empty() && name.len() <= 64 && !name.starts_with('.') && name.bytes().all(plain)
}

impl SubjectFile {
    /// Reads a file; `origin` names it in messages.
    ///
    /// # Errors
    /// The first mistake, with file and line where it has one.
    pub fn parse(origin: &str, text: &str) -> Result<SubjectFile, LabError> {
        let mut file: SubjectFile = toml_edit::de::from_str(text).map_err(|error| {
            let line = error.span().map_or(1, |span| {
                text.get(..span.start)
                    .map_or(1, |before| before.matches('\n').count() + 1)
            });
            LabError::bad_input(format!("{origin}:{line}: {}", error.message().trim()))
        })?;
        file.check()
            .map_err(|why| LabError::bad_input(format!("{origin}: {why}")))?;
        text.clone_into(&mut file.text);
        Ok(file)
    }

    fn check(&self) -> Result<(), String> {
        if !is_plain(&self.name) {
            return Err(format!(
                "name = {:?}: letters, digits, - _ and . only, at most 64",
                self.name
            ));
        }
        if self.takes.is_empty() {
            return Err("takes: expected \"calls\", \"registrations\" or both".to_owned());
        }
        if self.process.is_empty() || self.process.len() > MAX_PROCESSES {
            return Err(format!("expected 1 to {MAX_PROCESSES} [[process]] tables"));
        }
        if !self.process.iter().any(|process| process.counts) {
            return Err("no [[process]] counts: one needs counts = true".to_owned());
        }
        let values = Values::example();
        let mut names: Vec<&str> = Vec::new();
        for (kind, name) in (self.file.iter().map(|file| ("file", &file.name))).chain(
            self.process
                .iter()
                .map(|process| ("process", &process.name)),
        ) {
            if !is_plain(name) {
                return Err(format!(
                    "{kind} {name:?}: a name has letters, digits, - _ and . only, no folder"
                ));
            }
            if names.contains(&name.as_str()) {
                return Err(format!("{kind} {name:?}: the name is used twice"));
            }
            names.push(name);
        }
        for file in &self.file {
            values
                .fill(&file.text)
                .map_err(|why| format!("file {:?}: {why}", file.name))?;
        }
        for process in &self.process {
            let bad = |why: String| format!("process {:?}: {why}", process.name);
            if process.program.is_empty() {
                return Err(bad("program is empty".to_owned()));
            }
            for word in process.arguments.iter().chain([&process.program]) {
                values.fill(word).map_err(bad)?;
            }
            for (key, seconds) in [("start_s", process.start_s), ("stop_s", process.stop_s)] {
                if !(1..=MAX_SECONDS).contains(&seconds) {
                    return Err(bad(format!(
                        "{key} = {seconds}: expected 1 to {MAX_SECONDS}"
                    )));
                }
            }
            if process.warm_up > MAX_WARM_UP {
                return Err(bad(format!("warm_up: at most {MAX_WARM_UP}")));
            }
            if process.warm_up > 0 && process.probe == ProbeKind::Port {
                return Err(bad(
                    "warm_up needs a probe that is answered: sip or ng".to_owned()
                ));
            }
        }
        // Calls go to the address that answers.
        let sip = |process: &ProcessSpec| process.probe != ProbeKind::Ng;
        match self.process.iter().any(sip) {
            true => Ok(()),
            false => Err("no process has the probe sip or port at @listen@".to_owned()),
        }
    }

    /// Whether it takes a workload.
    pub fn takes(&self, load: AcceptedLoad) -> bool {
        self.takes.contains(&load)
    }

    /// Programs that are not installed.
    pub fn missing(&self) -> Vec<&str> {
        let missing = |process: &&ProcessSpec| {
            process.program != "@self@" && super::program::installed(&process.program).is_none()
        };
        let programs = self.process.iter().filter(missing);
        programs.map(|process| process.program.as_str()).collect()
    }

    /// Checks that its programs are installed.
    ///
    /// # Errors
    /// The names of those that are not, with the package.
    pub fn check_installed(&self) -> Result<(), LabError> {
        let missing: Vec<String> = self.missing().into_iter().map(str::to_owned).collect();
        self.check_missing(&missing)
    }

    /// The error of [`SubjectFile::check_installed`] for these missing programs.
    ///
    /// # Errors
    /// If there are any.
    pub fn check_missing(&self, missing: &[String]) -> Result<(), LabError> {
        if missing.is_empty() {
            return Ok(());
        }
        let remedy = match self.package.as_str() {
            "" => "install it, or name another subject (hornwork lab subjects)".to_owned(),
            package => format!(
                "install the package {package}, or name another subject (hornwork lab subjects)"
            ),
        };
        Err(LabError::cannot_run(
            format!(
                "subject {}: not installed: {}",
                self.name,
                missing.join(", ")
            ),
            remedy,
        ))
    }

    /// Name, title and version, for records.
    pub fn described(&self, version: &str) -> String {
        match version {
            "" => format!("{}: {}", self.name, self.title),
            version => format!("{}: {}; {version}", self.name, self.title),
        }
    }

    /// Version of the first process that prints one, or an empty text.
    pub fn version(&self) -> String {
        let version = |process: &ProcessSpec| {
            if process.version.is_empty() {
                return None;
            }
            let program = super::program::find(&process.program)?;
            super::program::version(&program, &process.version)
        };
        self.process.iter().find_map(version).unwrap_or_default()
    }
}

/// Reads a subject file from disk.
///
/// # Errors
/// If it cannot be read, or contains a mistake.
pub fn read(path: &Path) -> Result<SubjectFile, LabError> {
    let name = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|error| LabError::bad_input(format!("{name}: {error}")))?;
    SubjectFile::parse(&name, &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = \"mine\"\ntitle = \"t\"\ntakes = [\"calls\"]\nmedia = \"bypass\"\n\
        [[file]]\nname = \"a.cfg\"\ntext = \"listen @listen_ip@ port @listen_port@ for x@y z\"\n\
        [[process]]\nname = \"p\"\nprogram = \"sh\"\narguments = [\"-c\", \"@dir@/a.cfg\"]\nprobe = \"sip\"\n";

    #[test]
    fn placeholders_are_filled() {
        let file = SubjectFile::parse("mine.toml", GOOD).unwrap();
        let values = Values::example();
        assert_eq!(
            values.fill(&file.file[0].text).unwrap(),
            "listen 127.0.0.1 port 5060 for x@y z"
        );
        assert_eq!(
            values.fill("@media_first@-@media_last@ @called@@").unwrap(),
            "20000-20001 127.0.0.1:5060@"
        );
        assert!(values.fill("@media@").unwrap_err().contains("@media@"));
    }

    #[test]
    fn mistakes_are_named() {
        for (from, to, expected) in [
            (
                "title = \"t\"",
                "titel = \"t\"",
                "mine.toml:2: unknown field",
            ),
            ("@listen_ip@", "@lisen_ip@", "@lisen_ip@ is no placeholder"),
            ("name = \"a.cfg\"", "name = \"../a.cfg\"", "no folder"),
            ("name = \"a.cfg\"", "name = \"p\"", "used twice"),
            (
                "probe = \"sip\"",
                "probe = \"ng\"",
                "no process has the probe",
            ),
            (
                "probe = \"sip\"",
                "probe = \"sip\"\ncounts = false",
                "counts = true",
            ),
            (
                "probe = \"sip\"",
                "probe = \"sip\"\nstart_s = 0",
                "start_s = 0",
            ),
            (
                "probe = \"sip\"",
                "probe = \"port\"\nwarm_up = 1",
                "warm_up needs",
            ),
            ("[\"calls\"]", "[]", "takes"),
            ("[\"calls\"]", "[\"all\"]", "mine.toml:3: unknown variant"),
            ("name = \"mine\"", "name = \"a/b\"", "name = \"a/b\""),
        ] {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD);
            let error = SubjectFile::parse("mine.toml", &text).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.exit_code(), 2);
        }
    }
}
