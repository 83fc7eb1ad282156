//! Fixed lists: contract D.1, `PD_PROXY_PREFILL_URL` and `PD_PROXY_DECODE_URL`, each one address or several with commas.
//!
//! Every address should be one engine. Behind a load-balanced Service nobody can say which engine answered, so that a
//! bootstrap server asked there may be another engine's: with more than one prefill pod, use the EndpointSlice source.

use super::{authority, bootstrap_at, dial_of};
use crate::backends::{Availability, BackendKey, Description, Dial, Role};

/// A list that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadAddress(pub String);

/// The backends of a list of addresses `http://host[:port]`, a slash at the end allowed.
///
/// `bootstrap_port`: that of prefill instances, when the connector asks one.
///
/// # Errors
/// Naming the first address that cannot be used, and why.
pub fn backends(role: Role, urls: &[String], bootstrap_port: Option<u16>) -> Result<Vec<Description>, BadAddress> {
    let mut described: Vec<Description> = Vec::with_capacity(urls.len());
    for url in urls {
        let description = backend(role, url, bootstrap_port)?;
        if described.iter().any(|other| other.key == description.key) {
            return Err(BadAddress(format!("{} is named twice", description.key)));
        }
        described.push(description);
    }
    Ok(described)
}

/// With what is known of fixed backends: all are ready, since nobody says otherwise.
#[must_use]
pub fn all_ready(described: &[Description]) -> Vec<(Description, Availability)> {
    described.iter().map(|description| (description.clone(), Availability::Ready)).collect()
}

fn backend(role: Role, url: &str, bootstrap_port: Option<u16>) -> Result<Description, BadAddress> {
    let shown = gco_runtime::text::bounded(url, 120);
    if url.starts_with("https://") {
        return Err(BadAddress(format!("{shown}: TLS to engines is not supported yet; use http://")));
    }
    let Some(rest) = url.strip_prefix("http://") else {
        return Err(BadAddress(format!("{shown}: not an http:// address")));
    };
    let rest = rest.trim_end_matches('/');
    if rest.contains(['/', '?', '#']) {
        return Err(BadAddress(format!("{shown}: only http://host:port, without a path")));
    }
    // As everywhere in HTTP, 80 when no port is written.
    let has_no_port = !rest.contains(':') || rest.ends_with(']');
    let with_port = if has_no_port { authority(rest, 80) } else { rest.to_owned() };
    let dial = dial_of(&with_port).ok_or_else(|| BadAddress(format!("{shown}: not http://host:port")))?;
    let host = match &dial {
        Dial::Address(address) => address.ip().to_string(),
        Dial::Name { host, .. } => host.clone(),
    };
    let bootstrap = bootstrap_port.filter(|_| role == Role::Prefill).and_then(|port| bootstrap_at(&host, port));
    Ok(Description {
        key: BackendKey::new(&format!("http://{with_port}")),
        role,
        authority: with_port,
        dial,
        bootstrap,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(role: Role, urls: &[&str]) -> Result<Vec<Description>, BadAddress> {
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        backends(role, &urls, Some(8_998))
    }

    #[test]
    fn the_addresses_of_the_contract_are_read() {
        let read = read(Role::Prefill, &["http://split-llm-prefill:8000/", "http://[2001:db8::1]:8000"]).unwrap();
        assert_eq!(read[0].authority, "split-llm-prefill:8000");
        assert_eq!(read[0].key.as_str(), "http://split-llm-prefill:8000");
        assert_eq!(read[0].dial, Dial::Name { host: "split-llm-prefill".to_owned(), port: 8_000 });
        let bootstrap = read[0].bootstrap.as_ref().unwrap();
        assert_eq!(bootstrap.address, "http://split-llm-prefill:8998");
        assert_eq!(bootstrap.dial, Dial::Name { host: "split-llm-prefill".to_owned(), port: 8_998 });
        assert_eq!(read[1].bootstrap.as_ref().unwrap().address, "http://[2001:db8::1]:8998");
    }

    #[test]
    fn decode_engines_have_no_bootstrap_server_and_a_missing_port_is_80() {
        let read = read(Role::Decode, &["http://decode"]).unwrap();
        assert_eq!(read[0].authority, "decode:80");
        assert_eq!(read[0].bootstrap, None);
    }

    #[test]
    fn what_cannot_be_used_is_refused_with_the_reason() {
        for (urls, reason) in [
            (vec!["https://decode:8443"], "TLS to engines"),
            (vec!["decode:8000"], "not an http:// address"),
            (vec!["http://decode:8000/base"], "without a path"),
            (vec!["http://user@decode:8000"], "not http://host:port"),
            (vec!["http://"], "not http://host:port"),
            (vec!["http://decode:99999"], "not http://host:port"),
            (vec!["http://decode:80", "http://decode/"], "twice"),
        ] {
            let error = read(Role::Decode, &urls).unwrap_err();
            assert!(error.to_string().contains(reason), "{urls:?}: {error}");
        }
    }
}
