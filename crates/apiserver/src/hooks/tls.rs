//! One HTTPS request over a new connection.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject};
use rustls::{CertificateError, ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::collect;
use crate::server::Server;

/// Sends a request to an address, trusting only `roots` (PEM) and expecting a certificate for `host`. HTTP/1.1, as
/// webhooks are called with.
pub(super) async fn send(
    server: &Server,
    address: &str,
    host: &str,
    roots: &[u8],
    mut request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, String> {
    // HTTP/1.1 names the path alone; the host stands in its header.
    if let Some(path) = request.uri().path_and_query().cloned() {
        *request.uri_mut() = path.into();
    }
    let mut trusted = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(roots).flatten() {
        // What is no certificate is trusted by nobody; the call then fails on the unknown authority.
        let _ = trusted.add(certificate);
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_details(provider, server.tls_time())
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_root_certificates(trusted)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let name = ServerName::try_from(host.to_owned()).map_err(|e| e.to_string())?;
    let stream = TcpStream::connect(address)
        .await
        .map_err(|e| format!("dial tcp {address}: connect: {}", refused(&e)))?;
    let _ = stream.set_nodelay(true);
    let stream = TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(|e| handshake(&e))?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .map_err(|e| e.to_string())?;
    let exchange = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|e| e.to_string())?;
        let (parts, body) = response.into_parts();
        let bytes = collect(body).await.map_err(|e| e.to_string())?;
        Ok(Response::from_parts(parts, bytes))
    };
    let connection = async {
        match connection.await {
            // The connection is over; the answer says how.
            Ok(()) => std::future::pending().await,
            Err(error) => error.to_string(),
        }
    };
    tokio::select! {
        biased;
        answer = exchange => answer,
        broken = connection => Err(broken),
    }
}

fn refused(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".into(),
        _ => error.to_string(),
    }
}

/// A failed handshake in the words of a Go client.
fn handshake(error: &std::io::Error) -> String {
    let inner = error
        .get_ref()
        .and_then(|e| e.downcast_ref::<rustls::Error>());
    let why = match inner {
        Some(rustls::Error::InvalidCertificate(why)) => why,
        Some(other) => return format!("tls: {other}"),
        None if error.kind() == std::io::ErrorKind::UnexpectedEof => return "EOF".into(),
        None => return error.to_string(),
    };
    let detail = match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "certificate signed by unknown authority".into()
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => {
            "certificate has expired or is not yet valid".into()
        }
        CertificateError::NotValidForNameContext {
            expected,
            presented,
        } => {
            let names: Vec<&str> = presented
                .iter()
                .map(|p| p.trim_start_matches("DnsName(\"").trim_end_matches("\")"))
                .collect();
            format!(
                "certificate is valid for {}, not {}",
                names.join(", "),
                expected.to_str()
            )
        }
        other => other.to_string(),
    };
    format!("tls: failed to verify certificate: x509: {detail}")
}
