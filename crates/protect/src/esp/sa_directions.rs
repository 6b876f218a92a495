//! Lines of a key file without one for the other direction.

use super::sa_file::{AddressPattern, EspSaLine};
use core::fmt;
use core::net::IpAddr;
use std::collections::BTreeMap;

/// Most lines with wildcards in their addresses: each is compared with all others, and a file with more is not judged.
const MAX_PATTERNS: usize = 1_000;

impl fmt::Display for AddressPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AddressPattern::Any => f.write_str("any address"),
            AddressPattern::One(address) => write!(f, "{address}"),
            AddressPattern::Prefix(prefix) => write!(f, "{prefix}"),
            AddressPattern::Bits4(..) | AddressPattern::Bits6(..) => {
                f.write_str("the addresses of its pattern")
            }
        }
    }
}

impl AddressPattern {
    /// Whether both may fit one address; two patterns with wildcards are taken to do so.
    fn overlaps(&self, other: &AddressPattern) -> bool {
        match (self, other) {
            (AddressPattern::One(address), pattern) | (pattern, AddressPattern::One(address)) => {
                pattern.matches(*address)
            }
            _ => true,
        }
    }
}

impl EspSaLine {
    /// SPI and addresses of the association, for messages.
    pub fn association(&self) -> String {
        let digits = self.spi.iter().map(|digit| {
            let digit = digit.and_then(|digit| char::from_digit(digit.into(), 16));
            digit.unwrap_or('*')
        });
        let spi: String = match self.spi.is_empty() {
            true => "all SPIs".to_owned(),
            false => "SPI 0x".chars().chain(digits).collect(),
        };
        format!("{spi} from {} to {}", self.source, self.destination)
    }

    /// A note that the file has no line for the other direction.
    pub(super) fn one_way_note(&self) -> String {
        let ends = match (&self.source, &self.destination) {
            (AddressPattern::Any, AddressPattern::Any) => String::new(),
            (source, destination) => format!(", from {destination} to {source}"),
        };
        let association = self.association();
        format!(
            "{association}: no usable line for the other direction{ends}; its packets stay encrypted"
        )
    }

    /// Whether the line may be that of the other direction of `line`.
    fn returns(&self, line: &EspSaLine) -> bool {
        self.v6 == line.v6
            && self.source.overlaps(&line.destination)
            && self.destination.overlaps(&line.source)
    }
}

/// Indexes of the lines that have no line for the other direction.
pub(super) fn one_way(lines: &[EspSaLine]) -> Vec<usize> {
    let mut stated: BTreeMap<(IpAddr, IpAddr), usize> = BTreeMap::new();
    let mut patterns = Vec::new();
    for line in lines {
        match line.source().zip(line.destination()) {
            Some(ends) => *stated.entry(ends).or_default() += 1,
            None => patterns.push(line),
        }
    }
    if patterns.len() > MAX_PATTERNS {
        return Vec::new();
    }
    let has_return = |index: usize, line: &EspSaLine| match line.source().zip(line.destination()) {
        Some((source, destination)) => {
            // Between equal addresses the line itself is one of them.
            let own = usize::from(source == destination && line.spi().is_some());
            let back = stated.get(&(destination, source)).copied().unwrap_or(0);
            back > own || patterns.iter().any(|pattern| pattern.returns(line))
        }
        None => {
            let mut others = lines.iter().enumerate();
            others.any(|(other, candidate)| {
                let is_other = other != index || line.spi().is_none();
                is_other && candidate.returns(line)
            })
        }
    };
    let all = lines.iter().enumerate();
    all.filter(|(index, line)| !has_return(*index, line))
        .map(|(index, _)| index)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::{parse_esp_capture_keys, parse_esp_sa_file};
    use super::*;

    const A: &str = "192.0.2.1";
    const B: &str = "192.0.2.2";

    fn line(source: &str, destination: &str, spi: &str) -> String {
        format!(
            "\"IPv4\",\"{source}\",\"{destination}\",\"{spi}\",\"NULL\",\"\",\"HMAC-SHA-1-96 [RFC2404]\",\"0x{}\"\n",
            "07".repeat(20)
        )
    }

    #[test]
    fn lines_of_one_direction_are_found() {
        for (lines, expected) in [
            (vec![(A, B, "0x1001")], &[0][..]),
            (vec![(A, B, "0x1001"), (B, A, "0x1002")], &[]),
            // Older keys need no pair of their own.
            (
                vec![(A, B, "0x1001"), (A, B, "0x1003"), (B, A, "0x1002")],
                &[],
            ),
            (
                vec![
                    (A, B, "0x1001"),
                    (A, "192.0.2.3", "0x1003"),
                    (B, A, "0x1002"),
                ],
                &[1],
            ),
            (vec![(A, A, "0x1001")], &[0]),
            (vec![(A, A, "0x1001"), (A, A, "0x1002")], &[]),
            // Wildcards.
            (vec![("*", "*", "*")], &[]),
            (vec![("*", "*", "0x1001")], &[0]),
            (vec![("*", "*", "0x1001"), ("*", "*", "0x1002")], &[]),
            (vec![("*", B, "0x1001"), ("*", A, "0x1002")], &[]),
            (vec![("*", B, "0x1001"), (A, B, "0x1003")], &[0, 1]),
            (vec![("192.0.2.0/24", B, "0x1001"), (B, A, "0x1002")], &[]),
        ] {
            let text: String = lines.iter().map(|(a, b, spi)| line(a, b, spi)).collect();
            let lines = parse_esp_sa_file(&text).expect("lines");
            assert_eq!(one_way(&lines), expected, "{text}");
        }
    }

    #[test]
    fn association_without_the_other_direction_is_noted() {
        let text = format!(
            "# keys\n{}{}",
            line(A, B, "0x1001"),
            line(B, "192.0.2.3", "0x2*")
        );
        let keys = parse_esp_capture_keys(&text).expect("keys");
        let notes: Vec<String> = keys.notes.iter().map(ToString::to_string).collect();
        assert_eq!(
            notes,
            [
                "line 2: SPI 0x00001001 from 192.0.2.1 to 192.0.2.2: no usable line for the other direction, from 192.0.2.2 \
                 to 192.0.2.1; its packets stay encrypted",
                "line 3: SPI 0x0000002* from 192.0.2.2 to 192.0.2.3: no usable line for the other direction, from 192.0.2.3 \
                 to 192.0.2.2; its packets stay encrypted",
            ]
        );
        let both = line(A, B, "0x1001") + &line(B, A, "0x1002");
        assert!(
            parse_esp_capture_keys(&both)
                .expect("keys")
                .notes
                .is_empty()
        );
        // Many are counted.
        let many: String = (1..=50)
            .map(|last| line(A, &format!("192.0.2.{}", 100 + last), "0x1001"))
            .collect();
        let notes = parse_esp_capture_keys(&many).expect("keys").notes;
        assert_eq!(notes.len(), 11);
        assert!(
            notes[10].message.starts_with("40 further lines"),
            "{notes:?}"
        );
    }

    #[test]
    fn many_lines_with_wildcards_are_not_judged() {
        let text = line("*", B, "0x1001").repeat(MAX_PATTERNS + 1);
        let lines = parse_esp_sa_file(&text).expect("lines");
        assert!(one_way(&lines).is_empty());
    }
}
