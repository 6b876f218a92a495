//! Mistakes of a file, collected by path, and conversions that many tables share.

use super::address::{Cidr, HostName};
use super::document::DocumentNode;
use super::mistake::{Mistake, did_you_mean};
use super::names::{InterfaceId, Names, TrunkId};
use super::one_or_many::OneOrMany;
use core::time::Duration;
use std::path::{Path, PathBuf};

/// Collects mistakes; positions are given by path.
pub(super) struct Sink<'t> {
    text: &'t str,
    file: &'t str,
    node: &'t DocumentNode,
    /// Interfaces and trunks of the file.
    pub(super) names: Names,
    pub(super) mistakes: Vec<Mistake>,
}

impl<'t> Sink<'t> {
    pub(super) fn new(text: &'t str, file: &'t str, node: &'t DocumentNode) -> Sink<'t> {
        Sink {
            text,
            file,
            node,
            names: Names::default(),
            mistakes: Vec::new(),
        }
    }

    pub(super) fn report(
        &mut self,
        path: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.mistakes.push(Mistake::new(
            self.text,
            self.file,
            self.node.span_of(path),
            message.into(),
            remedy.into(),
        ));
    }

    /// The bytes of the text at a path.
    pub(super) fn span(&self, path: &str) -> core::ops::Range<usize> {
        self.node.span_of(path)
    }

    /// The line of a path, for use in other messages.
    pub(super) fn line(&self, path: &str) -> usize {
        let start = self.node.span_of(path).start.min(self.text.len());
        self.text
            .bytes()
            .take(start)
            .filter(|byte| *byte == b'\n')
            .count()
            + 1
    }

    /// The path `text`; a relative one starts at the folder of the configuration file, so that a service, whose working
    /// directory is `/`, finds the same files as a run by hand.
    pub(super) fn path(&self, text: &str) -> PathBuf {
        match Path::new(self.file).parent() {
            Some(folder) if !text.is_empty() => folder.join(text),
            _ => PathBuf::from(text),
        }
    }

    pub(super) fn sorted(mut self) -> Vec<Mistake> {
        self.mistakes.sort_by_key(|mistake| mistake.span.start);
        self.mistakes
    }

    /// The trunk of this name; reports a mistake at `path` if there is none.
    pub(super) fn trunk_id(&mut self, name: &str, path: &str) -> TrunkId {
        TrunkId(self.index_of(name, path, "trunk", |names| &names.trunks))
    }

    /// The interface of this name; reports a mistake at `path` if there is none.
    pub(super) fn interface_id(&mut self, name: &str, path: &str) -> InterfaceId {
        InterfaceId(self.index_of(name, path, "interface", |names| &names.interfaces))
    }

    fn index_of(
        &mut self,
        name: &str,
        path: &str,
        what: &str,
        list: fn(&Names) -> &Vec<String>,
    ) -> u16 {
        let known = list(&self.names);
        if let Some(at) = known.iter().position(|known| known == name) {
            return u16::try_from(at).unwrap_or(u16::MAX);
        }
        let remedy = match did_you_mean(name, known.iter().map(String::as_str)) {
            Some(word) => format!("did you mean \"{word}\"?"),
            None if known.is_empty() => format!("add a [[{what}]] with name = \"{name}\""),
            None => {
                // A name that is given twice is another mistake.
                let mut each: Vec<&str> = Vec::new();
                for name in known {
                    if !each.contains(&name.as_str()) {
                        each.push(name);
                    }
                }
                format!("use one of: {}", each.join(", "))
            }
        };
        self.report(path, format!("there is no {what} \"{name}\""), remedy);
        0
    }
}

pub(super) fn seconds(seconds: u32) -> Duration {
    Duration::from_secs(u64::from(seconds))
}

pub(super) fn optional_seconds(value: u32) -> Option<Duration> {
    (value > 0).then(|| seconds(value))
}

pub(super) fn one_line(text: &str) -> bool {
    !text.chars().any(char::is_control)
}

pub(super) fn cidrs(texts: &OneOrMany<String>, path: &str, sink: &mut Sink<'_>) -> Vec<Cidr> {
    let mut networks = Vec::new();
    for (index, text) in texts.as_slice().iter().enumerate() {
        match Cidr::parse(text) {
            Ok(network) => networks.push(network),
            Err(why) => sink.report(
                &texts.path(path, index),
                why,
                "write a network such as \"192.0.2.0/24\" or \"2001:db8::/32\"",
            ),
        }
    }
    networks
}

pub(super) fn host(text: &str, path: &str, sink: &mut Sink<'_>) -> Option<HostName> {
    let host = HostName::parse(text);
    if host.is_none() {
        sink.report(
            path,
            format!("\"{text}\" is neither a host name nor an address"),
            "write HOST or HOST:PORT, IPv6 with a port as [ADDRESS]:PORT",
        );
    }
    host
}

#[cfg(test)]
mod tests {
    use super::super::{Trust, parse};
    use std::path::PathBuf;

    #[test]
    fn relative_paths_start_at_the_folder_of_the_file() {
        let text = "[[interface]]\nname=\"a\"\nlisten=\"udp:192.0.2.1:5060\"\n[records]\nfolder=\"records\"\n\
                    [metrics]\ncsv=\"figures.csv\"\n[control]\nsocket=\"/run/control.sock\"\n\
                    [console]\nlisten=\"127.0.0.1:8443\"\ncertificate={chain=\"console.pem\",key=\"keys/console.key\"}\n\
                    audit=\"audit.ndjson\"\nclient_ca=\"console.pem\"\n";
        for (file, folder) in [
            ("/etc/hornwork/hornwork.toml", "/etc/hornwork/"),
            ("examples/tls.toml", "examples/"),
            ("border.toml", ""),
        ] {
            let config = parse(text, file).unwrap();
            let console = config.console.unwrap();
            let certificate = console.certificate.unwrap();
            let Some(Trust::File(authorities)) = &console.client_ca else {
                panic!("{:?}", console.client_ca);
            };
            let there = |name: &str| PathBuf::from(format!("{folder}{name}"));
            assert_eq!(certificate.chain.path(), there("console.pem"));
            assert_eq!(certificate.key.path(), there("keys/console.key"));
            assert_eq!(authorities.path(), there("console.pem"));
            assert_eq!(console.audit, Some(there("audit.ndjson")));
            assert_eq!(config.records.unwrap().folder, there("records"));
            assert_eq!(config.metrics.unwrap().csv, Some(there("figures.csv")));
            let socket = config.control.unwrap().socket;
            assert_eq!(socket, Some("/run/control.sock".into()), "absolute");
        }
    }

    #[test]
    fn names_that_are_given_twice_are_proposed_once() {
        let interface = |port: u16| {
            format!("[[interface]]\nname=\"inside\"\nlisten=\"udp:192.0.2.1:{port}\"\n")
        };
        let text = format!(
            "{}{}[[trunk]]\nname=\"t\"\ninterface=\"zz\"\ntarget=\"192.0.2.2\"\n",
            interface(5060),
            interface(5070)
        );
        let mistakes = crate::judge(&text, "f").mistakes;
        let unknown = mistakes
            .iter()
            .find(|mistake| mistake.message.contains("\"zz\""))
            .unwrap_or_else(|| panic!("{mistakes:#?}"));
        assert_eq!(unknown.remedy, "use one of: inside");
    }
}
