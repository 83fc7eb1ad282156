//! Where a pod's address really listens.
//!
//! The API server refuses loopback addresses in an `EndpointSlice`, so pods have addresses of the
//! documentation ranges, at which nobody listens. Whoever wants to speak to a pod looks here first.
//! This file is the only thing that a program needs to know of a region on one machine.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A map from a pod's address and port to an address of this machine.
///
/// The file is one JSON object, `{"192.0.2.7:8000": "127.0.0.1:23001"}`, and is replaced as a
/// whole: a reader sees one state or the next.
#[derive(Clone, Debug)]
pub struct DialMap {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    file: Option<PathBuf>,
    entries: Mutex<BTreeMap<SocketAddr, SocketAddr>>,
}

impl DialMap {
    /// An empty map that keeps `file` up to date from now on.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn create(file: &Path) -> io::Result<Self> {
        let map = Self::with(Some(file.to_owned()), BTreeMap::new());
        map.write(&map.entries())?;
        Ok(map)
    }

    /// What `file` says now. Later changes of the file are not seen.
    ///
    /// # Errors
    ///
    /// When the file cannot be read or is not a dial map.
    pub fn read(file: &Path) -> io::Result<Self> {
        let text = std::fs::read(file)?;
        let entries = serde_json::from_slice(&text).map_err(io::Error::other)?;
        Ok(Self::with(None, entries))
    }

    fn with(file: Option<PathBuf>, entries: BTreeMap<SocketAddr, SocketAddr>) -> Self {
        Self { shared: Arc::new(Shared { file, entries: Mutex::new(entries) }) }
    }

    /// Where a pod's port really listens; `None` for one that is not served.
    #[must_use]
    pub fn resolve(&self, address: IpAddr, port: u16) -> Option<SocketAddr> {
        self.entries().get(&SocketAddr::new(address, port)).copied()
    }

    /// How many ports of pods are served.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries().len()
    }

    /// Whether no pod is served.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// From now on these ports of a pod listen there.
    ///
    /// # Errors
    ///
    /// When the file cannot be written; the map in memory has changed all the same.
    pub fn insert(&self, address: IpAddr, ports: impl IntoIterator<Item = (u16, SocketAddr)>) -> io::Result<()> {
        self.change(|entries| {
            entries.extend(ports.into_iter().map(|(port, local)| (SocketAddr::new(address, port), local)));
        })
    }

    /// These ports of a pod do not listen any more.
    ///
    /// # Errors
    ///
    /// As [`DialMap::insert`].
    pub fn remove(&self, address: IpAddr, ports: impl IntoIterator<Item = u16>) -> io::Result<()> {
        self.change(|entries| {
            for port in ports {
                entries.remove(&SocketAddr::new(address, port));
            }
        })
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<SocketAddr, SocketAddr>)) -> io::Result<()> {
        let mut entries = self.entries();
        let before = entries.clone();
        change(&mut entries);
        // Written with the entries locked, so that the file never goes back in time.
        if *entries == before { Ok(()) } else { self.write(&entries) }
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, SocketAddr>> {
        self.shared.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, entries: &BTreeMap<SocketAddr, SocketAddr>) -> io::Result<()> {
        let Some(file) = &self.shared.file else { return Ok(()) };
        replace_file(file, &serde_json::to_vec_pretty(entries)?)
    }
}

/// Replaces a file as a whole: a reader sees the old text or the new one.
pub(crate) fn replace_file(file: &Path, text: &[u8]) -> io::Result<()> {
    let folder = file.parent().unwrap_or(Path::new("."));
    let mut new = tempfile::NamedTempFile::new_in(folder)?;
    new.write_all(text)?;
    new.persist(file)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    #[test]
    fn the_file_says_what_the_map_says() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dial-map.json");
        let map = DialMap::create(&file).unwrap();
        assert!(DialMap::read(&file).unwrap().is_empty());
        let pod: IpAddr = [192, 0, 2, 7].into();
        map.insert(pod, [(8000, local(23_001)), (8998, local(23_002))]).unwrap();
        let read = DialMap::read(&file).unwrap();
        assert_eq!(read.resolve(pod, 8000), Some(local(23_001)));
        assert_eq!(read.resolve(pod, 8998), Some(local(23_002)));
        assert_eq!(read.resolve(pod, 80), None);
        assert_eq!(
            serde_json::from_slice::<serde_json::Value>(&std::fs::read(&file).unwrap()).unwrap(),
            serde_json::json!({"192.0.2.7:8000": "127.0.0.1:23001", "192.0.2.7:8998": "127.0.0.1:23002"})
        );
    }

    #[test]
    fn a_pods_ports_are_replaced_and_removed_one_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("dial-map.json");
        let map = DialMap::create(&file).unwrap();
        let (one, other): (IpAddr, IpAddr) = ([192, 0, 2, 7].into(), [192, 0, 2, 8].into());
        map.insert(one, [(8000, local(1)), (8001, local(2))]).unwrap();
        map.insert(other, [(8000, local(3))]).unwrap();
        map.insert(one, [(8000, local(4))]).unwrap();
        assert_eq!((map.resolve(one, 8000), map.resolve(one, 8001)), (Some(local(4)), Some(local(2))));
        map.remove(one, [8000, 8001]).unwrap();
        assert_eq!(DialMap::read(&file).unwrap().len(), 1);
        assert_eq!(map.resolve(other, 8000), Some(local(3)));
    }
}
