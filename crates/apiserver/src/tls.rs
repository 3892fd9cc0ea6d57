//! The TLS listener, and certificates to serve it with.

use std::sync::Arc;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::server::Server;
use crate::service::ApiService;

/// HTTP/2 streams that one connection may have open.
const MAX_STREAMS: u32 = 1000;

/// A certificate chain and its key.
pub struct Tls {
    /// The server certificate first.
    pub cert: Vec<CertificateDer<'static>>,
    /// Its private key.
    pub key: PrivateKeyDer<'static>,
}

/// A certificate could not be made or read.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// From the certificate generator.
    #[error("cannot make a certificate: {0}")]
    Generate(#[from] rcgen::Error),
    /// From the PEM reader.
    #[error("cannot read PEM: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
}

impl Tls {
    /// From PEM texts.
    pub fn from_pem(cert: &str, key: &str) -> Result<Self, TlsError> {
        let cert = CertificateDer::pem_slice_iter(cert.as_bytes()).collect::<Result<_, _>>()?;
        Ok(Self {
            cert,
            key: PrivateKeyDer::from_pem_slice(key.as_bytes())?,
        })
    }

    /// A new certificate for these DNS names and IP addresses, and the PEM of the new authority that signed it.
    pub fn self_signed(names: &[&str]) -> Result<(Self, String), TlsError> {
        let mut authority = CertificateParams::new(Vec::<String>::new())?;
        authority
            .distinguished_name
            .push(DnType::CommonName, "embedded-apiserver-ca");
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let issuer = CertifiedIssuer::self_signed(authority, KeyPair::generate()?)?;
        let mut params =
            CertificateParams::new(names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>())?;
        params
            .distinguished_name
            .push(DnType::CommonName, "kube-apiserver");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &issuer)?;
        let tls = Self {
            cert: vec![cert.der().clone()],
            key: PrivateKeyDer::try_from(key.serialize_der())
                .map_err(|_| rcgen::Error::CouldNotParseKeyPair)?,
        };
        Ok((tls, issuer.pem()))
    }
}

/// The server's clock, for the validity of certificates.
pub(crate) struct Clock(pub Arc<dyn Fn() -> jiff::Timestamp + Send + Sync>);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Clock")
    }
}

impl rustls::time_provider::TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from((self.0)().as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(std::time::Duration::from_secs(
            seconds,
        )))
    }
}

/// Accepts connections until `shutdown`. A server that is down drops what it has and what comes.
pub(crate) async fn serve(
    server: Arc<Server>,
    listener: TcpListener,
    tls: Tls,
    shutdown: CancellationToken,
) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_details(provider, server.tls_time())
        .with_safe_default_protocol_versions()
        .map(|b| b.with_no_client_auth())
        .and_then(|b| b.with_single_cert(tls.cert, tls.key));
    let mut config = match config {
        Ok(config) => config,
        Err(error) => {
            tracing::error!(%error, server = server.name, "cannot serve TLS with this certificate");
            return;
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            _ = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(server.clone(), acceptor.clone(), stream, shutdown.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, server = server.name, "cannot accept a connection");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            }
        }
    }
    connections.shutdown().await;
}

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    shutdown: CancellationToken,
) {
    let up = server.fault.up();
    let _ = stream.set_nodelay(true);
    let serve = async {
        let stream = acceptor.accept(stream).await?;
        let service = TowerToHyperService::new(ApiService::new(server, None));
        let mut http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        // One connection carries all watches of a process.
        http.http2().max_concurrent_streams(MAX_STREAMS);
        http.serve_connection(TokioIo::new(stream), service).await
    };
    tokio::select! {
        biased;
        () = shutdown.cancelled() => {}
        () = up.cancelled() => {}
        result = serve => if let Err(error) = result {
            tracing::debug!(%error, "connection ended");
        }
    }
}
