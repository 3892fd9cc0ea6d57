//! Webhooks behind a real TLS listener, found through a Service as on a cluster.

use std::convert::Infallible;
use std::net::SocketAddr;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use farshore_apiserver::Tls;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::admission::{VALIDATING, World, map, message, world};
use crate::wire::{JSON, MAPS};

/// Answers every review with a refusal that tells the host and the path it came to.
async fn answer(
    request: Request<hyper::body::Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let to = format!(
        "{}{}",
        request.headers()["host"].to_str().unwrap(),
        request.uri()
    );
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let review: Value = serde_json::from_slice(&body).unwrap();
    let response =
        json!({"uid": review["request"]["uid"], "allowed": false, "status": {"message": to}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response});
    Ok(Response::new(Full::new(Bytes::from(review.to_string()))))
}

/// A webhook on a loopback port with a certificate for these names; its address and the authority as a `caBundle`.
async fn listen(names: &[&str]) -> (SocketAddr, String) {
    let (tls, authority) = Tls::self_signed(names).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(tls.cert, tls.key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(stream).await {
                    let service = hyper::service::service_fn(answer);
                    let server = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = server.serve_connection(TokioIo::new(stream), service).await;
                }
            });
        }
    });
    (address, BASE64_STANDARD.encode(authority))
}

/// Tries to create a ConfigMap with one webhook configured like this.
async fn refusal(world: &World, client: Value) -> String {
    let hook = json!([{
        "name": "v.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": client, "timeoutSeconds": 5,
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
    }]);
    world.configure(VALIDATING, "v", hook).await;
    let (_, body, _) = world
        .send(Method::POST, MAPS, JSON, map("a", json!({})))
        .await;
    world
        .send(Method::DELETE, &format!("{VALIDATING}/v"), JSON, json!({}))
        .await;
    message(&body).to_owned()
}

#[tokio::test]
async fn a_webhook_is_reached_through_its_service_over_tls_that_only_its_bundle_vouches_for() {
    let world = world();
    let (address, bundle) = listen(&["hook.default.svc"]).await;
    let service = |bundle: &str| json!({"service": {"namespace": "default", "name": "hook", "path": "/admit"}, "caBundle": bundle});
    let failed = "Internal error occurred: failed calling webhook \"v.example.com\": failed to call webhook: Post \"https://hook.default.svc:443/admit?timeout=5s\": ";
    assert_eq!(
        refusal(&world, service(&bundle)).await,
        format!("{failed}service \"hook\" not found")
    );

    let object = json!({"metadata": {"name": "hook"}, "spec": {"ports": [{"name": "https", "port": 443, "targetPort": 8443}]}});
    world
        .send(
            Method::POST,
            "/api/v1/namespaces/default/services",
            JSON,
            object,
        )
        .await;
    assert_eq!(
        refusal(&world, service(&bundle)).await,
        format!("{failed}no endpoints available for service \"hook\"")
    );

    let slice = json!({
        "metadata": {"name": "hook-1", "labels": {"kubernetes.io/service-name": "hook"}}, "addressType": "IPv4",
        "endpoints": [{"addresses": ["127.0.0.1"], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": address.port(), "protocol": "TCP"}],
    });
    let (code, body, _) = world
        .send(
            Method::POST,
            "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
            JSON,
            slice,
        )
        .await;
    assert_eq!(code, 201, "{body}");
    assert_eq!(
        refusal(&world, service(&bundle)).await,
        "admission webhook \"v.example.com\" denied the request: hook.default.svc:443/admit?timeout=5s"
    );

    let (_, other) = listen(&["hook.default.svc"]).await;
    let untrusted =
        "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert_eq!(
        refusal(&world, service(&other)).await,
        format!("{failed}{untrusted}")
    );

    // Another name for the same listener: its certificate is not for that.
    world
        .hooks
        .address("other.default.svc", &address.to_string());
    let client = json!({"service": {"namespace": "default", "name": "other"}, "caBundle": bundle});
    let said = refusal(&world, client).await;
    let wrong = "x509: certificate is valid for hook.default.svc, not other.default.svc";
    assert!(said.ends_with(wrong), "{said}");

    let gone = TcpListener::bind("127.0.0.1:0")
        .await
        .unwrap()
        .local_addr()
        .unwrap();
    let client = json!({"url": format!("https://{gone}/admit"), "caBundle": bundle});
    let said = refusal(&world, client).await;
    assert!(
        said.ends_with(&format!("dial tcp {gone}: connect: connection refused")),
        "{said}"
    );
}

#[tokio::test]
async fn a_url_leads_to_its_address() {
    let world = world();
    let (address, bundle) = listen(&["127.0.0.1"]).await;
    let client = json!({"url": format!("https://{address}/here"), "caBundle": bundle});
    assert_eq!(
        refusal(&world, client).await,
        format!(
            "admission webhook \"v.example.com\" denied the request: {address}/here?timeout=5s"
        )
    );
}
