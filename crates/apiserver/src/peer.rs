//! Client certificates: whose connection it is. The common name is the user, the organizations are its groups.

use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme};

use crate::auth::User;

/// What a connection's certificate says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Peer {
    /// There is none.
    #[default]
    Unknown,
    /// One that the client authority does not vouch for: only a token can help.
    Refused,
    Known(User),
}

/// Lets every certificate through the handshake that its sender has the key of. Whether the authority vouches for it is
/// asked afterwards, so that the answer to a wrong one is 401 and not a broken connection.
#[derive(Debug)]
pub(crate) struct Verifier(Arc<dyn ClientCertVerifier>);

impl Verifier {
    pub fn new(
        roots: &[CertificateDer<'static>],
        provider: Arc<rustls::crypto::CryptoProvider>,
    ) -> Result<Self, String> {
        let mut trusted = RootCertStore::empty();
        for root in roots {
            trusted.add(root.clone()).map_err(|e| e.to_string())?;
        }
        let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(trusted), provider)
            .allow_unauthenticated()
            .build()
            .map_err(|e| e.to_string())?;
        Ok(Self(inner))
    }

    /// Whose certificates these are, the client's own first.
    pub fn peer(&self, certificates: Option<&[CertificateDer<'static>]>, now: UnixTime) -> Peer {
        let Some((own, others)) = certificates.and_then(<[_]>::split_first) else {
            return Peer::Unknown;
        };
        match (self.0.verify_client_cert(own, others, now), subject(own)) {
            (Ok(_), Some((name, groups))) if !name.is_empty() => {
                let groups: Vec<&str> = groups.iter().map(String::as_str).collect();
                Peer::Known(User::new(&name, &groups))
            }
            _ => Peer::Refused,
        }
    }
}

impl ClientCertVerifier for Verifier {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_ID: u8 = 0x06;
/// The optional version in front of a certificate's other fields.
const VERSION: u8 = 0xa0;
const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 3] = [0x55, 0x04, 0x0a];
/// UTF8String, PrintableString, TeletexString, IA5String.
const TEXTS: [u8; 4] = [0x0c, 0x13, 0x14, 0x16];

/// The first DER element: its tag, its content, and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = if first & 0x80 == 0 {
        (usize::from(*first), rest)
    } else {
        let count = usize::from(first & 0x7f);
        let bytes = rest.get(..count).filter(|_| (1..=4).contains(&count))?;
        let length = bytes.iter().fold(0, |n, b| n << 8 | usize::from(*b));
        (length, &rest[count..])
    };
    Some((*tag, rest.get(..length)?, rest.get(length..)?))
}

fn inner(der: &[u8], wanted: u8) -> Option<(&[u8], &[u8])> {
    element(der).and_then(|(tag, content, rest)| (tag == wanted).then_some((content, rest)))
}

/// Common name and organizations of a certificate's subject (RFC 5280, 4.1).
fn subject(certificate: &[u8]) -> Option<(String, Vec<String>)> {
    let (whole, _) = inner(certificate, SEQUENCE)?;
    let (mut at, _) = inner(whole, SEQUENCE)?;
    if let Some((_, rest)) = inner(at, VERSION) {
        at = rest;
    }
    // Serial number, signature algorithm, issuer, validity.
    for _ in 0..4 {
        (_, _, at) = element(at)?;
    }
    let (mut names, _) = inner(at, SEQUENCE)?;
    let (mut name, mut groups) = (String::new(), Vec::new());
    while let Some((mut set, rest)) = inner(names, SET) {
        names = rest;
        while let Some((pair, more)) = inner(set, SEQUENCE) {
            set = more;
            let (id, value) = inner(pair, OBJECT_ID)?;
            let Some((_, text, _)) = element(value).filter(|(tag, ..)| TEXTS.contains(tag)) else {
                continue;
            };
            let text = String::from_utf8_lossy(text).into_owned();
            if id == COMMON_NAME {
                name = text;
            } else if id == ORGANIZATION {
                groups.push(text);
            }
        }
    }
    Some((name, groups))
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    #[test]
    fn a_subject_is_a_user_and_its_groups() {
        let mut params = CertificateParams::new(vec!["a.example.com".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, "system:masters");
        params.distinguished_name.push(DnType::CommonName, "jürgen");
        let cert = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        let found = subject(cert.der()).unwrap();
        assert_eq!(
            found,
            ("jürgen".to_owned(), vec!["system:masters".to_owned()])
        );
    }

    #[test]
    fn what_is_no_certificate_has_no_subject() {
        let cert = CertificateParams::new(vec![])
            .unwrap()
            .self_signed(&KeyPair::generate().unwrap())
            .unwrap();
        for length in 0..cert.der().len() {
            let _ = subject(&cert.der()[..length]);
        }
        assert_eq!(subject(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
