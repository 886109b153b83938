//! Ranges of addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    address: IpAddr,
    pub(super) prefix: u8,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CidrError {
    #[error("`{0}` is no address range such as 10.0.1.0/24 or fe80::/64")]
    Form(String),
    #[error("the prefix of `{0}` is longer than the address")]
    Prefix(String),
}

impl FromStr for Cidr {
    type Err = CidrError;

    /// An address alone is a range of one.
    fn from_str(text: &str) -> Result<Cidr, CidrError> {
        let form = || CidrError::Form(text.to_owned());
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.trim().parse().map_err(|_| form())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = match prefix {
            None => bits,
            Some(prefix) => prefix.trim().parse::<u8>().map_err(|_| form())?,
        };
        if prefix > bits {
            return Err(CidrError::Prefix(text.to_owned()));
        }
        Ok(Cidr { address, prefix })
    }
}

impl Cidr {
    /// Every address of the range, cut to its prefix, is this one.
    pub(super) fn network(&self) -> IpAddr {
        network(self.address, self.prefix)
    }
}

/// The address with everything behind its first `prefix` bits cleared.
pub(super) fn network(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() & mask))
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0);
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & mask))
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}
