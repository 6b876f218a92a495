//! Address prefixes.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;
use serde::{Deserialize, Serialize};

/// Addresses whose first bits are equal, of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressPrefix {
    address: IpAddr,
    length: u8,
}

impl AddressPrefix {
    /// The addresses whose first `length` bits are those of `address`; `None` if the family has fewer bits.
    pub fn new(address: IpAddr, length: u8) -> Option<AddressPrefix> {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        (length <= bits).then_some(AddressPrefix { address, length })
    }

    /// The address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Number of first bits that count.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether an address has this prefix.
    #[inline]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(prefix), IpAddr::V4(address)) => {
                let differing = prefix.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.length)
            }
            (IpAddr::V6(prefix), IpAddr::V6(address)) => {
                let differing = prefix.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.length)
            }
            _ => false,
        }
    }
}

impl From<IpAddr> for AddressPrefix {
    fn from(address: IpAddr) -> AddressPrefix {
        AddressPrefix {
            address,
            length: if address.is_ipv4() { 32 } else { 128 },
        }
    }
}

/// `192.0.2.0/24`, or one address.
impl FromStr for AddressPrefix {
    type Err = String;

    fn from_str(text: &str) -> Result<AddressPrefix, String> {
        let wrong = || format!("\"{text}\" is no address prefix such as 192.0.2.0/24");
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        match length {
            Some(length) => AddressPrefix::new(address, length).ok_or_else(wrong),
            None => Ok(address.into()),
        }
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}
