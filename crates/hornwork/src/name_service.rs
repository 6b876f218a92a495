//! The name service of this machine: /etc/hosts, and the servers of /etc/resolv.conf.

use config::Config;
use std::net::{IpAddr, SocketAddr};

/// Names of /etc/hosts that are used, at most: lists of blocked advertisers have a hundred thousand.
const MAX_HOSTS: usize = 10_000;

/// The configuration with the names of /etc/hosts, and with the machine's name servers if the file names none.
pub(crate) fn with_name_service(mut config: Config) -> Config {
    let read = |path: &str| std::fs::read(path).unwrap_or_default();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    config.dns.hosts = hosts(&text(read("/etc/hosts")));
    if config.dns.hosts.len() > MAX_HOSTS {
        tracing::warn!(
            "/etc/hosts has {} names, of which the first {MAX_HOSTS} are used; move those of SIP systems to its beginning",
            config.dns.hosts.len()
        );
        config.dns.hosts.truncate(MAX_HOSTS);
    }
    if config.dns.servers.is_empty() {
        config.dns.servers = name_servers(&text(read("/etc/resolv.conf")));
    }
    config
}

/// Names and addresses of a hosts file (hosts(5)), in its order; addresses with a zone (`fe80::1%eth0`) are ignored.
fn hosts(text: &str) -> Vec<(String, IpAddr)> {
    let entry = |line: &str| {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
        let names = address.map(|address| words.map(move |name| (name.to_owned(), address)));
        names.into_iter().flatten().collect::<Vec<_>>()
    };
    text.lines().flat_map(entry).collect()
}

/// The name servers of a resolv.conf; those with a zone (`fe80::1%eth0`) are ignored.
fn name_servers(text: &str) -> Vec<SocketAddr> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("nameserver"))
        .filter(|rest| rest.starts_with([' ', '\t']))
        .filter_map(|rest| rest.split_whitespace().next()?.parse::<IpAddr>().ok())
        .map(|ip| SocketAddr::new(ip, 53))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_servers_are_parsed_as_in_resolvers() {
        let text = "# x\nsearch example.com\nnameserver 192.0.2.53\n nameserver\t2001:db8::53 \nnameservers 1.1.1.1\nnameserver fe80::1%eth0\n";
        let servers: Vec<String> = name_servers(text).iter().map(ToString::to_string).collect();
        assert_eq!(servers, ["192.0.2.53:53", "[2001:db8::53]:53"]);
    }

    #[test]
    fn names_of_a_hosts_file_have_its_addresses() {
        let text = "127.0.0.1 localhost\n# 192.0.2.9 old\n10.0.0.20\tpbx.example.com pbx # Asterisk\n::1 localhost ip6-localhost\nfe80::1%eth0 router\nname 10.0.0.1\n\n";
        let found: Vec<String> = hosts(text)
            .iter()
            .map(|(name, address)| format!("{name}={address}"))
            .collect();
        assert_eq!(
            found,
            [
                "localhost=127.0.0.1",
                "pbx.example.com=10.0.0.20",
                "pbx=10.0.0.20",
                "localhost=::1",
                "ip6-localhost=::1"
            ]
        );
    }

    /// A name of /etc/hosts is located without DNS.
    #[test]
    fn names_of_this_machine_are_part_of_the_configuration() {
        let text =
            "[[interface]]\nname='a'\nlisten='udp:127.0.0.1'\n[dns]\nservers=['192.0.2.53']\n";
        let config = with_name_service(config::parse(text, "f").unwrap());
        let file = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
        assert_eq!(config.dns.hosts, hosts(&file));
        assert_eq!(config.dns.servers, ["192.0.2.53:53".parse().unwrap()]);
    }
}
