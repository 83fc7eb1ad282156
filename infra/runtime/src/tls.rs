//! The process's TLS provider.

/// Makes aws-lc-rs the process's TLS provider.
///
/// Every binary and every test that opens a TLS connection calls this first; calling it again does
/// nothing, and a provider that something else installed before stays.
pub fn install_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Fails only when another thread installed one in between, which is as good.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_provider_can_be_installed_any_number_of_times() {
        super::install_provider();
        super::install_provider();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }
}
