//! The associations of one end from the lines of a key file: which one sends, which one receives.

use super::SaSpec;
use super::sa_file::{AddressPattern, EspSaLine};
use core::net::IpAddr;

/// The side that an end takes where the addresses of a key file are the same in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EspEndRole {
    /// Sends with the first line.
    First,
    /// Sends with the second line.
    Second,
}

/// Two lines of a key file as one end uses them.
#[derive(Clone, Debug)]
pub struct EspSaPair {
    /// Packets that are sent.
    pub outbound: EspSaLine,
    /// Packets that are received.
    pub inbound: EspSaLine,
}

/// How well an address fits a pattern.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    No,
    Any,
    Stated,
}

impl Fit {
    fn of(pattern: &AddressPattern, address: IpAddr) -> Fit {
        match pattern {
            AddressPattern::Any => Fit::Any,
            pattern if pattern.matches(address) => Fit::Stated,
            _ => Fit::No,
        }
    }
}

impl EspSaLine {
    /// The SPI; `None` if it has wildcards.
    pub fn spi(&self) -> Option<u32> {
        if self.spi.len() != 8 {
            return None;
        }
        self.spi
            .iter()
            .try_fold(0, |spi, digit| Some(spi << 4 | u32::from((*digit)?)))
    }

    /// The source address, if the line states one.
    pub fn source(&self) -> Option<IpAddr> {
        self.source.one()
    }

    /// The destination address, if the line states one.
    pub fn destination(&self) -> Option<IpAddr> {
        self.destination.one()
    }

    /// The description of an association in transport mode, with the keys of the line.
    ///
    /// # Errors
    /// The line serves only to read captures: wildcards in the SPI, or an ICV that is not checked.
    pub fn to_spec(&self) -> Result<SaSpec, String> {
        let spi = self
            .spi()
            .ok_or("its SPI has wildcards; an association has one number")?;
        if self.unverified_icv.is_some() {
            return Err(format!(
                "SPI {spi:#010x}: authentication \"ANY ... [no checking]\" only reads captures; name the algorithm and its key"
            ));
        }
        let mut spec = SaSpec::new(spi, self.suite, self.keys.clone());
        spec.extended_sequence = match self.extended_sequence {
            None => false,
            Some(0) => true,
            Some(_) => {
                return Err(format!(
                    "SPI {spi:#010x}: the upper half of sequence numbers begins with 0x00000000"
                ));
            }
        };
        Ok(spec)
    }
}

impl AddressPattern {
    fn one(&self) -> Option<IpAddr> {
        match self {
            AddressPattern::One(address) => Some(*address),
            _ => None,
        }
    }
}

/// The lines of the end at `local`, towards `peer` if it is known. Directions follow from the addresses; if both lines
/// fit both directions, from `role`.
///
/// # Errors
/// There is not exactly one line for each direction, or both have the same SPI or the same keys.
pub fn esp_sa_pair(
    lines: &[EspSaLine],
    local: IpAddr,
    peer: Option<IpAddr>,
    role: EspEndRole,
) -> Result<EspSaPair, String> {
    let (mut outbound, mut inbound, mut either) = (Vec::new(), Vec::new(), Vec::new());
    for line in lines {
        let peer_fits = |pattern: &AddressPattern| peer.is_none_or(|peer| pattern.matches(peer));
        let sends = Fit::of(&line.source, local);
        let receives = Fit::of(&line.destination, local);
        let sends_to_peer = peer_fits(&line.destination);
        let receives_from_peer = peer_fits(&line.source);
        match sends.cmp(&receives) {
            core::cmp::Ordering::Greater if sends_to_peer => outbound.push(line),
            core::cmp::Ordering::Less if receives_from_peer => inbound.push(line),
            core::cmp::Ordering::Equal
                if sends != Fit::No && sends_to_peer && receives_from_peer =>
            {
                either.push(line);
            }
            _ => {}
        }
    }
    let (outbound, inbound) = match (&outbound[..], &inbound[..], &either[..]) {
        ([outbound], [inbound], []) => (*outbound, *inbound),
        ([], [], [first, second]) => match role {
            EspEndRole::First => (*first, *second),
            EspEndRole::Second => (*second, *first),
        },
        (outbound, inbound, either) => {
            let peer = peer.map_or("any peer".to_owned(), |peer| peer.to_string());
            let missing = match (outbound, inbound, either) {
                ([line], [], []) | ([], [line], []) | ([], [], [line]) => format!(
                    "; missing is the other direction of {}: a line from {} to {}",
                    line.association(),
                    line.destination,
                    line.source
                ),
                _ => String::new(),
            };
            return Err(format!(
                "one line for each direction between {local} and {peer} is needed; {} line(s) send from {local}, {} receive at {local}, {} fit both directions{missing}",
                outbound.len(),
                inbound.len(),
                either.len()
            ));
        }
    };
    if outbound.spi() == inbound.spi() {
        return Err("both directions have the same SPI".to_owned());
    }
    if outbound.keys == inbound.keys {
        // Both ends count sequence numbers from one: a shared key repeats the nonces of AEAD ciphers.
        return Err("both directions have the same keys".to_owned());
    }
    Ok(EspSaPair {
        outbound: outbound.clone(),
        inbound: inbound.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::parse_esp_sa_file;
    use super::*;

    fn line(source: &str, destination: &str, spi: &str, key: u8) -> String {
        let key: String = (0..36).map(|_| format!("{key:02x}")).collect();
        format!(
            "\"IPv4\",\"{source}\",\"{destination}\",\"{spi}\",\"ChaCha20 with Poly1305 [RFC7634]\",\"0x{key}\",\"NULL\",\"\"\n"
        )
    }

    fn pair(text: &str, local: &str, role: EspEndRole) -> Result<(u32, u32), String> {
        let lines = parse_esp_sa_file(text).expect("lines");
        let pair = esp_sa_pair(&lines, local.parse().unwrap(), None, role)?;
        Ok((pair.outbound.spi().unwrap(), pair.inbound.spi().unwrap()))
    }

    #[test]
    fn directions_follow_from_addresses() {
        let (a, b) = ("192.0.2.1", "192.0.2.2");
        let stated = line(a, b, "0x1001", 1) + &line(b, a, "0x1002", 2);
        for role in [EspEndRole::First, EspEndRole::Second] {
            assert_eq!(pair(&stated, a, role), Ok((0x1001, 0x1002)));
            assert_eq!(pair(&stated, b, role), Ok((0x1002, 0x1001)));
        }
        assert!(pair(&stated, "192.0.2.3", EspEndRole::First).is_err());
        let half = line("*", b, "0x1001", 1) + &line("*", a, "0x1002", 2);
        assert_eq!(
            pair(&half, a, EspEndRole::First),
            Ok((0x1001, 0x1002)),
            "a stated address counts more than a wildcard"
        );
    }

    #[test]
    fn equal_addresses_are_decided_by_the_role() {
        let text = line("*", "*", "0x1001", 1) + &line("*", "*", "0x1002", 2);
        let local = "127.0.0.1";
        assert_eq!(pair(&text, local, EspEndRole::First), Ok((0x1001, 0x1002)));
        assert_eq!(pair(&text, local, EspEndRole::Second), Ok((0x1002, 0x1001)));
    }

    #[test]
    fn unusable_pairs_are_refused() {
        let (a, b) = ("192.0.2.1", "192.0.2.2");
        for (text, why) in [
            (line(a, b, "0x1001", 1), "each direction"),
            (
                line(b, a, "0x1002", 1),
                "missing is the other direction of SPI 0x00001002 from 192.0.2.2 to 192.0.2.1: a line from 192.0.2.1 to 192.0.2.2",
            ),
            (
                line(a, b, "0x1001", 1) + &line(b, a, "0x1001", 2),
                "same SPI",
            ),
            (
                line(a, b, "0x1001", 1) + &line(b, a, "0x1002", 1),
                "same keys",
            ),
            (
                line(a, b, "0x1001", 1) + &line(a, b, "0x1003", 3) + &line(b, a, "0x1002", 2),
                "2 line(s) send",
            ),
        ] {
            let error = pair(&text, a, EspEndRole::First).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let lines = parse_esp_sa_file(&line(a, b, "0x10*", 1)).unwrap();
        assert!(lines[0].to_spec().unwrap_err().contains("wildcards"));
    }
}
