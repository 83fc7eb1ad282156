//! Where backends come from.

pub mod ask;
pub mod fixed;

use super::backend::{Bootstrap, Dial};

/// An address of the form `host:port` or `[v6]:port`, taken apart; `None` when it is not one.
#[must_use]
pub fn dial_of(authority: &str) -> Option<Dial> {
    let parsed: http::uri::Authority = authority.parse().ok()?;
    if authority.contains('@') {
        return None;
    }
    let port = parsed.port_u16().filter(|port| *port != 0)?;
    let host = parsed.host().trim_start_matches('[').trim_end_matches(']');
    if host.is_empty() {
        return None;
    }
    Some(match host.parse() {
        Ok(address) => Dial::Address(std::net::SocketAddr::new(address, port)),
        Err(_) => Dial::Name { host: host.to_owned(), port },
    })
}

/// `host:port` with brackets around an IPv6 host.
#[must_use]
pub fn authority(host: &str, port: u16) -> String {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.contains(':') { format!("[{bare}]:{port}") } else { format!("{bare}:{port}") }
}

/// The bootstrap server at a port of a host that is dialled under its own name.
pub(crate) fn bootstrap_at(host: &str, port: u16) -> Option<Bootstrap> {
    let authority = authority(host, port);
    Some(Bootstrap { dial: dial_of(&authority)?, address: format!("http://{authority}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_ports_and_brackets_are_understood() {
        assert_eq!(dial_of("192.0.2.7:8000"), Some(Dial::Address(([192, 0, 2, 7], 8_000).into())));
        assert_eq!(dial_of("[2001:db8::7]:80"), Some(Dial::Address("[2001:db8::7]:80".parse().unwrap())));
        assert_eq!(dial_of("decode.svc:8000"), Some(Dial::Name { host: "decode.svc".to_owned(), port: 8_000 }));
        for wrong in ["", "decode", "decode:", "decode:0", "decode:70000", ":80", "user@decode:80", "a b:80", "x/y:80"]
        {
            assert_eq!(dial_of(wrong), None, "{wrong}");
        }
        assert_eq!(authority("2001:db8::7", 80), "[2001:db8::7]:80");
        assert_eq!(authority("[2001:db8::7]", 80), "[2001:db8::7]:80");
        assert_eq!(authority("decode", 80), "decode:80");
    }
}
