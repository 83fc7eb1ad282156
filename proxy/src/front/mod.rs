//! The front door's TLS: certificate and key from files, read anew when they change. Connections that are open stay as they
//! are; new ones get the new certificate. A pair that cannot be used changes nothing: the last good one counts.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use arc_swap::ArcSwap;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::TlsFiles;

/// What both files held, as they stand. Never shown.
#[derive(Clone, PartialEq, Eq)]
struct Pair {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

/// The TLS side of the listening port.
pub struct Tls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    /// What was read last, good or not.
    read: std::sync::Mutex<Pair>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Tls").field("files", &self.files).finish_non_exhaustive()
    }
}

/// What a look at the files found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// Nothing new.
    Unchanged,
    /// A new pair, which is in use now.
    Loaded,
    /// Something new that cannot be used; the last good pair stays.
    Unusable,
}

impl Tls {
    /// Reads both files.
    ///
    /// # Errors
    /// When one cannot be read, holds no certificate or key, or they do not belong together.
    pub fn load(files: &TlsFiles) -> anyhow::Result<Self> {
        gco_runtime::tls::install_provider();
        let pair = Pair { certificate: read(&files.certificate)?, key: read(&files.key)? };
        let config = server_config(&pair, files)?;
        Ok(Self { files: files.clone(), config: ArcSwap::from_pointee(config), read: std::sync::Mutex::new(pair) })
    }

    /// Shakes hands on a new connection, within this time.
    ///
    /// # Errors
    /// When the client does not speak TLS, breaks off, or takes too long.
    pub async fn accept(&self, stream: TcpStream, within: Duration) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = TlsAcceptor::from(self.config.load_full());
        tokio::time::timeout(within, acceptor.accept(stream))
            .await
            .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the TLS handshake took too long"))?
    }

    /// Looks at the files once.
    ///
    /// # Errors
    /// When one cannot be read.
    pub fn look(&self) -> anyhow::Result<Looked> {
        let pair = Pair { certificate: read(&self.files.certificate)?, key: read(&self.files.key)? };
        let mut last = self.read.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if *last == pair {
            return Ok(Looked::Unchanged);
        }
        let made = server_config(&pair, &self.files);
        *last = pair;
        match made {
            Ok(config) => {
                self.config.store(Arc::new(config));
                tracing::info!(file = %self.files.certificate.display(), "new certificate in use");
                Ok(Looked::Loaded)
            }
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the new certificate cannot be used; the last one stays");
                Ok(Looked::Unusable)
            }
        }
    }

    /// Looks at the files for ever, and says what each change came to: `true` for a pair that is in use now.
    pub async fn watch(self: Arc<Self>, loaded: impl Fn(bool) + Send + 'static) {
        let mut was_readable = true;
        loop {
            tokio::time::sleep(self.files.reload).await;
            let tls = self.clone();
            // Files may be on a mount that hangs: not on a thread that serves.
            let looked = tokio::task::spawn_blocking(move || tls.look()).await;
            let readable = match looked {
                Ok(Ok(Looked::Unchanged)) | Err(_) => continue,
                Ok(Ok(looked)) => {
                    loaded(looked == Looked::Loaded);
                    true
                }
                Ok(Err(error)) => {
                    if was_readable {
                        loaded(false);
                        tracing::warn!(
                            error = format!("{error:#}"),
                            "the certificate cannot be read; the last one stays"
                        );
                    }
                    false
                }
            };
            was_readable = readable;
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("reading {}", path.display()))
}

/// Errors name the file and never what is in it: a parser's message may quote a line of the key.
fn server_config(pair: &Pair, files: &TlsFiles) -> anyhow::Result<ServerConfig> {
    let (certificate, key) = (files.certificate.display(), files.key.display());
    let chain = CertificateDer::pem_slice_iter(&pair.certificate).collect::<Result<Vec<_>, _>>();
    let chain = chain.ok().filter(|chain| !chain.is_empty());
    let chain = chain.with_context(|| format!("{certificate}: no certificate in PEM form"))?;
    let private = PrivateKeyDer::from_pem_slice(&pair.key).ok();
    let private = private.with_context(|| format!("{key}: no private key in PEM form"))?;
    let config = ServerConfig::builder().with_no_client_auth().with_single_cert(chain, private);
    let mut config = config.with_context(|| format!("{certificate} and {key} cannot be used together"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests;
