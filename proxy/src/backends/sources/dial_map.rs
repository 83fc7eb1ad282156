//! Where an address really listens, for a region on one machine.
//!
//! The API server refuses loopback addresses in EndpointSlices, so that pods on one machine have addresses at which nobody
//! listens. The file says where each one really does: `{"192.0.2.7:8000": "127.0.0.1:23001"}`. It is replaced as a whole
//! by whoever runs the pods, and read again whenever it has changed.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::authority;
use crate::backends::{Availability, Bootstrap, Description, Dial};

/// A map from addresses to where they listen.
pub(super) type DialMap = HashMap<SocketAddr, SocketAddr>;

/// A watched file: small, read often, and taken when its contents differ from the last ones.
#[derive(Debug)]
pub(super) struct WatchedFile {
    path: PathBuf,
    text: Option<Vec<u8>>,
}

impl WatchedFile {
    pub(super) const fn new(path: PathBuf) -> Self {
        Self { path, text: None }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The contents, if they are not the ones of the last call.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub(super) async fn changed(&mut self) -> std::io::Result<Option<&[u8]>> {
        let text = tokio::fs::read(&self.path).await?;
        if self.text.as_ref() == Some(&text) {
            return Ok(None);
        }
        Ok(Some(self.text.insert(text)))
    }
}

/// A dial map's text, taken apart.
pub(super) fn parse(text: &[u8]) -> Result<DialMap, serde_json::Error> {
    serde_json::from_slice(text)
}

/// The description with the addresses at which it really listens; an engine that the map does not name is not ready.
///
/// Decode engines have no such map, so they are told the mapped address of the bootstrap server, too.
pub(super) fn mapped(
    map: &DialMap,
    (mut description, availability): (Description, Availability),
) -> (Description, Availability) {
    let Dial::Address(address) = description.dial else { return (description, availability) };
    let Some(listens) = map.get(&address) else { return (description, Availability::NotReady) };
    description.dial = Dial::Address(*listens);
    if let Some(Bootstrap { address, dial: Dial::Address(asked) }) = &mut description.bootstrap
        && let Some(listens) = map.get(asked)
    {
        *address = format!("http://{}", authority(&listens.ip().to_string(), listens.port()));
        *asked = *listens;
    }
    (description, availability)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backends::{BackendKey, Role};

    fn prefill() -> Description {
        Description {
            key: BackendKey::new("uid"),
            role: Role::Prefill,
            authority: "192.0.2.7:8000".to_owned(),
            dial: Dial::Address("192.0.2.7:8000".parse().unwrap()),
            bootstrap: Some(Bootstrap {
                address: "http://192.0.2.7:8998".to_owned(),
                dial: Dial::Address("192.0.2.7:8998".parse().unwrap()),
            }),
        }
    }

    #[test]
    fn an_engine_is_dialled_where_it_listens_and_keeps_its_name() {
        let map = parse(br#"{"192.0.2.7:8000": "127.0.0.1:23001", "192.0.2.7:8998": "127.0.0.1:23002"}"#).unwrap();
        let (description, availability) = mapped(&map, (prefill(), Availability::Ready));
        assert_eq!(availability, Availability::Ready);
        assert_eq!(description.authority, "192.0.2.7:8000");
        assert_eq!(description.dial.to_string(), "127.0.0.1:23001");
        let bootstrap = description.bootstrap.unwrap();
        assert_eq!(
            (bootstrap.address.as_str(), bootstrap.dial.to_string().as_str()),
            ("http://127.0.0.1:23002", "127.0.0.1:23002")
        );
    }

    #[test]
    fn an_engine_that_the_map_does_not_name_is_not_ready() {
        let (description, availability) = mapped(&DialMap::new(), (prefill(), Availability::Ready));
        assert_eq!((description, availability), (prefill(), Availability::NotReady));
        assert!(parse(b"[]").is_err() && parse(br#"{"a": "b"}"#).is_err());
    }

    #[tokio::test]
    async fn a_file_is_taken_when_its_contents_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("map.json");
        let mut file = WatchedFile::new(path.clone());
        assert!(file.changed().await.is_err());
        for text in [b"{}", b"[]", b"{}"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(file.changed().await.unwrap(), Some(text.as_slice()));
            assert_eq!(file.changed().await.unwrap(), None);
        }
    }
}
