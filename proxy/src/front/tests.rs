use std::path::PathBuf;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsConnector;
use tokio_rustls::client;

use super::*;

// Made for these tests alone; nothing trusts them.
const FIRST: (&str, &str) = (include_str!("test_certificates/first.crt"), include_str!("test_certificates/first.key"));
const SECOND: (&str, &str) =
    (include_str!("test_certificates/second.crt"), include_str!("test_certificates/second.key"));

const BOUND: Duration = Duration::from_secs(20);

fn write(files: &TlsFiles, (certificate, key): (&str, &str)) {
    std::fs::write(&files.certificate, certificate).unwrap();
    std::fs::write(&files.key, key).unwrap();
}

fn files(folder: &tempfile::TempDir) -> TlsFiles {
    let path = |name: &str| -> PathBuf { folder.path().join(name) };
    TlsFiles { certificate: path("tls.crt"), key: path("tls.key"), reload: Duration::from_millis(10) }
}

/// A connection to `tls` by a client that trusts this certificate only; both ends.
async fn connect(tls: &Tls, trusted: &str) -> io::Result<(TlsStream<TcpStream>, client::TlsStream<TcpStream>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(trusted.as_bytes()).unwrap()).unwrap();
    let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let client = async {
        let stream = TcpStream::connect(address).await?;
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
    };
    let server = async {
        let (stream, _) = listener.accept().await?;
        tls.accept(stream, BOUND).await
    };
    let (client, server) = tokio::join!(client, server);
    Ok((server?, client?))
}

async fn speaks(ends: &mut (TlsStream<TcpStream>, client::TlsStream<TcpStream>)) {
    ends.0.write_all(b"hello").await.unwrap();
    ends.0.flush().await.unwrap();
    let mut heard = [0; 5];
    tokio::time::timeout(BOUND, ends.1.read_exact(&mut heard)).await.unwrap().unwrap();
    assert_eq!(&heard, b"hello");
}

#[tokio::test]
async fn a_changed_certificate_is_used_for_new_connections_and_open_ones_stay() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&folder);
    write(&files, FIRST);
    let tls = Tls::load(&files).unwrap();
    let mut old = connect(&tls, FIRST.0).await.unwrap();
    assert!(connect(&tls, SECOND.0).await.is_err());
    assert_eq!(tls.look().unwrap(), Looked::Unchanged);
    write(&files, SECOND);
    assert_eq!(tls.look().unwrap(), Looked::Loaded);
    let mut new = connect(&tls, SECOND.0).await.unwrap();
    assert!(connect(&tls, FIRST.0).await.is_err());
    speaks(&mut old).await;
    speaks(&mut new).await;
}

#[tokio::test]
async fn a_pair_that_does_not_belong_together_or_is_none_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&folder);
    write(&files, FIRST);
    let tls = Tls::load(&files).unwrap();
    // Half of a swap: the certificate is new, the key is not yet.
    std::fs::write(&files.certificate, SECOND.0).unwrap();
    assert_eq!(tls.look().unwrap(), Looked::Unusable);
    assert_eq!(tls.look().unwrap(), Looked::Unchanged, "said once");
    connect(&tls, FIRST.0).await.unwrap();
    std::fs::write(&files.key, SECOND.1).unwrap();
    assert_eq!(tls.look().unwrap(), Looked::Loaded);
    for (certificate, key) in [("", SECOND.1), (SECOND.0, ""), ("-----BEGIN CERTIFICATE-----\n", SECOND.1)] {
        write(&files, (certificate, key));
        assert_eq!(tls.look().unwrap(), Looked::Unusable);
    }
    std::fs::remove_file(&files.key).unwrap();
    assert!(tls.look().is_err());
    connect(&tls, SECOND.0).await.unwrap();
}

#[tokio::test]
async fn the_watch_takes_a_new_pair_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&folder);
    write(&files, FIRST);
    let tls = Arc::new(Tls::load(&files).unwrap());
    let (sender, mut said) = tokio::sync::mpsc::unbounded_channel();
    let watch = tokio::spawn(tls.clone().watch(move |good| {
        let _ = sender.send(good);
    }));
    std::fs::write(&files.certificate, "nothing").unwrap();
    assert_eq!(tokio::time::timeout(BOUND, said.recv()).await.unwrap(), Some(false));
    write(&files, SECOND);
    let loaded = async { while said.recv().await != Some(true) {} };
    tokio::time::timeout(BOUND, loaded).await.unwrap();
    connect(&tls, SECOND.0).await.unwrap();
    watch.abort();
}

#[tokio::test]
async fn who_does_not_shake_hands_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&folder);
    write(&files, FIRST);
    let tls = Tls::load(&files).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    let error = tls.accept(stream, Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    drop(silent);
}

#[test]
fn at_the_start_an_unusable_pair_is_an_error_that_names_the_file_and_shows_nothing_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&folder);
    assert!(format!("{:#}", Tls::load(&files).unwrap_err()).contains("tls.crt"));
    write(&files, (FIRST.0, SECOND.1));
    let error = format!("{:#}", Tls::load(&files).unwrap_err());
    assert!(error.contains("cannot be used together"), "{error}");
    write(&files, (FIRST.0, "-----BEGIN PRIVATE KEY-----\nc2VjcmV0c2VjcmV0\n"));
    let error = format!("{:#}", Tls::load(&files).unwrap_err());
    assert!(error.contains("tls.key: no private key") && !error.contains("c2VjcmV0"), "{error}");
}
