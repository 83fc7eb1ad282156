//! The server behind the proxy.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use bytes::Bytes;
use http::Uri;
use http::uri::Scheme;
use http_body_util::combinators::UnsyncBoxBody;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};

/// How long an idle connection is kept. Shorter than any server's own bound (table servers close after
/// five seconds), so that a request never meets a connection that is being closed.
const IDLE: Duration = Duration::from_secs(2);

pub(super) type RequestBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// Where requests are passed on to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Upstream {
    /// A server without TLS, such as a table server.
    Http {
        /// Its address.
        address: SocketAddr,
    },
    /// A server with TLS, such as kube-apiserver.
    Https {
        /// Its address.
        address: SocketAddr,
        /// The certificates, in PEM, of which one must have signed the server's.
        certificate_authorities: Vec<u8>,
    },
}

pub(super) struct UpstreamClient {
    client: Client<HttpsConnector<HttpConnector>, RequestBody>,
    scheme: Scheme,
    address: SocketAddr,
}

impl UpstreamClient {
    pub(super) fn new(upstream: &Upstream) -> anyhow::Result<Self> {
        gco_runtime::tls::install_provider();
        let mut roots = RootCertStore::empty();
        let (scheme, address) = match upstream {
            Upstream::Http { address } => (Scheme::HTTP, *address),
            Upstream::Https { address, certificate_authorities } => {
                let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificate_authorities).collect();
                let certificates = read.context("reading the certificates of an upstream server")?;
                // The file may hold the server's own certificate too, which need not serve as an anchor.
                roots.add_parsable_certificates(certificates);
                ensure!(!roots.is_empty(), "there is no certificate for the upstream server");
                (Scheme::HTTPS, *address)
            }
        };
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Self { client, scheme, address })
    }

    /// The upstream's address for a path with query.
    pub(super) fn uri(&self, path_and_query: &str) -> Result<Uri, http::Error> {
        let authority = self.address.to_string();
        Uri::builder().scheme(self.scheme.clone()).authority(authority).path_and_query(path_and_query).build()
    }

    pub(super) async fn send(
        &self,
        request: http::Request<RequestBody>,
    ) -> Result<http::Response<hyper::body::Incoming>, String> {
        self.client.request(request).await.map_err(|error| with_causes(&error))
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    gco_runtime::text::bounded(&text, 500)
}
