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

use crate::peer::Verifier;
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
    /// Authorities of client certificates; without any, none is asked for.
    pub client_roots: Vec<CertificateDer<'static>>,
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
            client_roots: Vec::new(),
        })
    }

    /// Takes client certificates of these authorities (PEM) as authentication: the common name is the user, the
    /// organizations are its groups.
    pub fn with_client_ca(mut self, authorities: &str) -> Result<Self, TlsError> {
        let found = CertificateDer::pem_slice_iter(authorities.as_bytes())
            .collect::<Result<Vec<_>, _>>()?;
        self.client_roots.extend(found);
        Ok(self)
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
            client_roots: Vec::new(),
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
    let (acceptor, verifier) = match acceptor(&server, tls) {
        Ok(ready) => ready,
        Err(error) => {
            tracing::error!(
                error,
                server = server.name,
                "cannot serve TLS with these certificates"
            );
            return;
        }
    };
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            _ = connections.join_next(), if !connections.is_empty() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (acceptor, verifier) = (acceptor.clone(), verifier.clone());
                    connections.spawn(connection(server.clone(), acceptor, verifier, stream, shutdown.clone()));
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

fn acceptor(server: &Server, tls: Tls) -> Result<(TlsAcceptor, Option<Arc<Verifier>>), String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_details(provider.clone(), server.tls_time())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?;
    let (builder, verifier) = if tls.client_roots.is_empty() {
        (builder.with_no_client_auth(), None)
    } else {
        let verifier = Arc::new(Verifier::new(&tls.client_roots, provider)?);
        (
            builder.with_client_cert_verifier(verifier.clone()),
            Some(verifier),
        )
    };
    let mut config = builder
        .with_single_cert(tls.cert, tls.key)
        .map_err(|e| e.to_string())?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), verifier))
}

async fn connection(
    server: Arc<Server>,
    acceptor: TlsAcceptor,
    verifier: Option<Arc<Verifier>>,
    stream: TcpStream,
    shutdown: CancellationToken,
) {
    let up = server.fault.up();
    let _ = stream.set_nodelay(true);
    let serve = async {
        let stream = acceptor.accept(stream).await?;
        let peer = verifier.map(|v| {
            let now = server.tls_time().current_time();
            let certificates = stream.get_ref().1.peer_certificates();
            v.peer(
                certificates,
                now.unwrap_or_else(|| UnixTime::since_unix_epoch(Default::default())),
            )
        });
        let service = ApiService::of_peer(server, peer.unwrap_or_default());
        let service = TowerToHyperService::new(service);
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
