//! Which address a request came from, behind proxies that the owner trusts. Pure. Called by `access`.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use http::HeaderMap;
use serde::Deserialize;

use wire::units::InvalidValue;

/// The header to which each proxy adds the address that a request came to it from.
const FORWARDED_FOR: &str = "x-forwarded-for";

/// An address, or all that begin with the same bits: `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    first: IpAddr,
    prefix: u32,
}

impl Network {
    fn contains(&self, address: IpAddr) -> bool {
        let (bits, own, other) = match (self.first, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (32, u128::from(own.to_bits()), other.to_bits().into()),
            (IpAddr::V6(own), IpAddr::V6(other)) => (128, own.to_bits(), other.to_bits()),
            _ => return false,
        };
        // Of a prefix of no bits, nothing is left to compare.
        (own ^ other).checked_shr(bits - self.prefix).unwrap_or_default() == 0
    }
}

impl FromStr for Network {
    type Err = InvalidValue;

    fn from_str(text: &str) -> Result<Self, InvalidValue> {
        let advice = r#"write an address or a network, such as "127.0.0.1" or "10.0.0.0/8""#;
        let wrong = || InvalidValue::form(text, "an address of a proxy", advice);
        let (first, prefix) = text.split_once('/').map_or((text, None), |(first, bits)| (first, Some(bits)));
        let first: IpAddr = first.parse().map_err(|_| wrong())?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if prefix <= most { Ok(Self { first, prefix }) } else { Err(wrong()) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}", self.first, self.prefix)
    }
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: serde::Deserializer<'de>>(source: D) -> Result<Self, D::Error> {
        String::deserialize(source)?.parse().map_err(serde::de::Error::custom)
    }
}

wire::text_setting!(Network, "an address or a network");

/// Returns the address of the client: that of the connection, or, if it is a trusted proxy's, the last one in
/// `X-Forwarded-For` that is not. What stands before it can have been written by the client.
pub(super) fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: &[Network]) -> IpAddr {
    let is_trusted = |address: IpAddr| trusted.iter().any(|network| network.contains(address));
    let mut client = peer.to_canonical();
    if !is_trusted(client) {
        return peer;
    }
    for line in headers.get_all(FORWARDED_FOR).iter().rev() {
        for hop in line.to_str().unwrap_or_default().rsplit(',') {
            let Some(address) = parse_hop(hop.trim()) else { return client };
            client = address.to_canonical();
            if !is_trusted(client) {
                return client;
            }
        }
    }
    client
}

/// Parses an address, to which some proxies add the port.
fn parse_hop(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse().ok().map(|socket: std::net::SocketAddr| socket.ip());
    text.parse().ok().or_else(with_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn networks(texts: &[&str]) -> Vec<Network> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn only_trusted_proxies_name_the_client() {
        let trusted = networks(&["127.0.0.1", "10.0.0.0/8", "2001:db8::/32"]);
        let check = |peer: &str, lines: &[&'static str], expected: &str| {
            let lines =
                lines.iter().map(|line| (FORWARDED_FOR.parse().unwrap(), HeaderValue::from_static(line)));
            let headers: HeaderMap = lines.collect();
            let found = client_address(peer.parse().unwrap(), &headers, &trusted);
            assert_eq!(found.to_string(), expected, "{peer} {headers:?}");
        };
        check("127.0.0.1", &["192.0.2.7"], "192.0.2.7");
        check("::ffff:127.0.0.1", &["192.0.2.7"], "192.0.2.7");
        check("192.0.2.1", &["192.0.2.7"], "192.0.2.1");
        check("127.0.0.1", &["6.6.6.6, 192.0.2.7, 10.1.2.3"], "192.0.2.7");
        check("127.0.0.1", &["6.6.6.6", "192.0.2.7", "10.1.2.3"], "192.0.2.7");
        check("127.0.0.1", &["192.0.2.7:4711"], "192.0.2.7");
        check("2001:db8::1", &["[2001:dead::7]:4711"], "2001:dead::7");
        check("127.0.0.1", &["10.0.0.9, 10.1.2.3"], "10.0.0.9");
        check("127.0.0.1", &["192.0.2.7, unknown, 10.1.2.3"], "10.1.2.3");
        check("127.0.0.1", &[], "127.0.0.1");
    }

    #[test]
    fn networks_are_read_and_compared() {
        for text in ["10.0.0.0/33", "::1/129", "10.0.0.0/", "10.0.0/8", "localhost", "", "10.0.0.0/-1"] {
            assert!(text.parse::<Network>().is_err(), "{text}");
        }
        for (network, address, expected) in [
            ("0.0.0.0/0", "192.0.2.1", true),
            ("::/0", "2001:db8::1", true),
            ("::/0", "192.0.2.1", false),
            ("192.0.2.128/25", "192.0.2.127", false),
            ("192.0.2.200/25", "192.0.2.129", true),
            ("192.0.2.1/32", "192.0.2.2", false),
            ("2001:db8::/33", "2001:db8:8000::", false),
        ] {
            let network: Network = network.parse().unwrap();
            assert_eq!(network.contains(address.parse().unwrap()), expected, "{network} {address}");
        }
    }
}
