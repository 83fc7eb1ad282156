//! Free ports on loopback.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// Picks `count` different ports that are free now.
///
/// Another process can take one before it is used: whoever starts a server on one tries again with
/// others when the server says that its address is in use.
///
/// # Errors
/// When the kernel gives none.
pub fn free_ports(count: usize) -> std::io::Result<Vec<u16>> {
    // All are held until the last one is picked, so that they differ.
    let held = (0..count).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0))).collect::<Result<Vec<_>, _>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}

/// Whether nobody listens on the port now.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// The loopback address with the port.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Whether a program's output says that it lost a port to someone else.
pub fn lost_port(output: &str) -> bool {
    let output = output.to_ascii_lowercase();
    output.contains("address already in use") || output.contains("eaddrinuse") || output.contains("errno 98")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picked_ports_differ_and_a_port_in_use_is_not_free() {
        let ports = free_ports(8).unwrap();
        let different: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(different.len(), 8);
        let listener = TcpListener::bind(loopback(0)).unwrap();
        assert!(!is_free(listener.local_addr().unwrap().port()));
    }

    #[test]
    fn the_ways_programs_report_a_lost_port_are_known() {
        assert!(lost_port("listen tcp 127.0.0.1:1: bind: address already in use"));
        assert!(lost_port("Error: listen EADDRINUSE: ..."));
        assert!(!lost_port("permission denied"));
    }
}
