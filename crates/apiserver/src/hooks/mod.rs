//! Calls from the server to webhooks: where a `clientConfig` leads, and one POST there.
//!
//! Webhooks that live in this process are registered in [`Hooks`]; everything else is reached as on a real cluster, by
//! TLS over TCP. Error texts are those of a Go client, because operators search for them.

mod tls;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{Request, Response, Uri};
use http_body::Body;
use http_body_util::{BodyExt, Full, Limited};
use serde_json::Value;
use tower::util::BoxCloneService;
use tower::{BoxError, Service, ServiceExt};

use crate::meta;
use crate::server::Server;
use crate::store::Key;

/// Longest answer read from a webhook.
const LIMIT: usize = 16 * 1024 * 1024;
/// Label that ties an EndpointSlice to its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

type InProcess = BoxCloneService<Request<Full<Bytes>>, Response<Bytes>, BoxError>;

#[derive(Clone)]
enum Place {
    InProcess(InProcess),
    Address(String),
}

/// Where webhooks answer, by the host a call goes to: `<service>.<namespace>.svc` for a Service, the host of the URL
/// otherwise; with `:<port>` for one port only. Clones share one registry, so hosts can be added while servers run.
///
/// A Service that is not here is looked up in the server: its EndpointSlices, else its Endpoints. Any other host must be
/// an IP address or `localhost`.
#[derive(Clone, Default)]
pub struct Hooks(Arc<Mutex<BTreeMap<String, Place>>>);

impl Hooks {
    fn places(&self) -> MutexGuard<'_, BTreeMap<String, Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls to this host go to a `tower::Service` in this process, without TLS.
    pub fn serve<S, B>(&self, host: &str, service: S)
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send,
        S::Error: Into<BoxError>,
        B: Body + Send + 'static,
        B::Data: Send,
        B::Error: Into<BoxError>,
    {
        let service =
            service
                .map_err(Into::<BoxError>::into)
                .and_then(|response: Response<B>| async move {
                    let (parts, body) = response.into_parts();
                    let bytes = collect(body).await?;
                    Ok(Response::from_parts(parts, bytes))
                });
        self.places()
            .insert(host.to_owned(), Place::InProcess(service.boxed_clone()));
    }

    /// Calls to this host go to this `ip:port`, by TLS with the host as server name.
    pub fn address(&self, host: &str, address: &str) {
        self.places()
            .insert(host.to_owned(), Place::Address(address.to_owned()));
    }

    /// Forgets a host.
    pub fn remove(&self, host: &str) {
        self.places().remove(host);
    }

    fn find(&self, host: &str, port: u16) -> Option<Place> {
        let places = self.places();
        let exact = places.get(&format!("{host}:{port}"));
        exact.or_else(|| places.get(host)).cloned()
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.places().keys()).finish()
    }
}

async fn collect<B>(body: B) -> Result<Bytes, BoxError>
where
    B: Body,
    B::Error: Into<BoxError>,
{
    Ok(Limited::new(body, LIMIT).collect().await?.to_bytes())
}

/// A `clientConfig`, taken apart.
#[derive(Debug)]
struct Destination {
    host: String,
    port: u16,
    /// As error texts show it, without a query.
    url: String,
    path: String,
    /// Namespace and name, where it is a Service.
    service: Option<(String, String)>,
    /// PEM of the only roots to trust.
    roots: Vec<u8>,
}

impl Destination {
    fn of(config: &Value) -> Result<Self, String> {
        let text = |path: &str| meta::field_text(config, path);
        let roots =
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, text("caBundle"))
                .map_err(|e| format!("caBundle: {e}"))?;
        if config.get("service").is_some_and(Value::is_object) {
            let (namespace, name) = (text("service.namespace"), text("service.name"));
            let port = meta::field(config, "service.port").and_then(Value::as_u64);
            let port = port.and_then(|p| u16::try_from(p).ok()).unwrap_or(443);
            let host = format!("{name}.{namespace}.svc");
            let path = match text("service.path") {
                path if path.starts_with('/') => path,
                path => format!("/{path}"),
            };
            return Ok(Self {
                url: format!("https://{host}:{port}{path}"),
                host,
                port,
                path,
                service: Some((namespace, name)),
                roots,
            });
        }
        let url = text("url");
        if url.is_empty() {
            return Err("webhook configuration must have either service or URL".into());
        }
        let uri: Uri = url.parse().map_err(|e| format!("Unparsable URL: {e}"))?;
        let host = uri.host().unwrap_or_default();
        Ok(Self {
            host: host.trim_matches(['[', ']']).to_owned(),
            port: uri.port_u16().unwrap_or(443),
            path: uri.path().to_owned(),
            url,
            service: None,
            roots,
        })
    }
}

/// Posts a review to the webhook of a `clientConfig` and returns the review it answers with. The error is the end of a sentence that begins with which webhook was called.
pub(crate) async fn post(
    server: &Server,
    config: &Value,
    review: &Value,
    limit: Duration,
) -> Result<Value, String> {
    let to = Destination::of(config)?;
    let query = format!("?timeout={}s", limit.as_millis().div_ceil(1000));
    let url = format!("{}{query}", to.url);
    let call = exchange(server, &to, &query, review);
    let response = match tokio::time::timeout(limit, call).await {
        Ok(Ok(response)) => response,
        Ok(Err(why)) => return Err(format!("Post {url:?}: {why}")),
        Err(_) => return Err(format!("Post {url:?}: context deadline exceeded")),
    };
    understand(&response)
}

async fn exchange(
    server: &Server,
    to: &Destination,
    query: &str,
    review: &Value,
) -> Result<Response<Bytes>, String> {
    let body = Full::new(Bytes::from(review.to_string()));
    let request = Request::post(format!(
        "https://{}:{}{}{query}",
        host_in_url(&to.host),
        to.port,
        to.path
    ))
    .header(HOST, format!("{}:{}", host_in_url(&to.host), to.port))
    .header(CONTENT_TYPE, "application/json")
    .header(ACCEPT, "application/json, */*")
    .header(USER_AGENT, "kube-apiserver-admission")
    .body(body)
    .map_err(|e| e.to_string())?;
    let address = match server.hooks.find(&to.host, to.port) {
        Some(Place::InProcess(service)) => {
            return service.oneshot(request).await.map_err(|e| e.to_string());
        }
        Some(Place::Address(address)) => address,
        None => address(server, to)?,
    };
    tls::send(server, &address, &to.host, &to.roots, request).await
}

/// An IPv6 address stands in brackets inside a URL.
fn host_in_url(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

/// The `ip:port` behind a destination, as the server's own objects tell it.
fn address(server: &Server, to: &Destination) -> Result<String, String> {
    let Some((namespace, name)) = &to.service else {
        if to.host != "localhost" && to.host.parse::<std::net::IpAddr>().is_err() {
            return Err(format!("dial tcp: lookup {}: no such host", to.host));
        }
        let host = if to.host == "localhost" {
            "127.0.0.1"
        } else {
            &to.host
        };
        return Ok(format!("{}:{}", host_in_url(host), to.port));
    };
    let service = server.store.get("services", &Key::new(namespace, name));
    let service = service.ok_or_else(|| format!("service {name:?} not found"))?;
    let list = |path: &str| {
        let list = meta::field(&service.value, path).and_then(Value::as_array);
        list.cloned().unwrap_or_default()
    };
    let ports = list("spec.ports");
    let port = ports.iter().find(|p| p["port"] == to.port);
    let port =
        port.ok_or_else(|| format!("no service port {} found for service {name:?}", to.port))?;
    let port_name = port["name"].as_str().unwrap_or("");
    let slices = server
        .store
        .list("endpointslices.discovery.k8s.io", Some(namespace))
        .objects;
    for slice in &slices {
        let of = meta::labels(&slice.value).and_then(|l| l.get(SERVICE_NAME));
        if of.and_then(Value::as_str) != Some(name.as_str()) {
            continue;
        }
        let ready = items(&slice.value, "endpoints")
            .iter()
            .find(|e| e["conditions"]["ready"] != false);
        if let Some(ip) = ready.and_then(|e| e["addresses"][0].as_str())
            && let Some(port) = named_port(items(&slice.value, "ports"), port_name)
        {
            return Ok(format!("{}:{port}", host_in_url(ip)));
        }
    }
    if let Some(endpoints) = server.store.get("endpoints", &Key::new(namespace, name)) {
        for subset in items(&endpoints.value, "subsets") {
            if let Some(ip) = subset["addresses"][0]["ip"].as_str()
                && let Some(port) = named_port(items(subset, "ports"), port_name)
            {
                return Ok(format!("{}:{port}", host_in_url(ip)));
            }
        }
    }
    Err(format!("no endpoints available for service {name:?}"))
}

fn items<'a>(object: &'a Value, field: &str) -> &'a [Value] {
    object
        .get(field)
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn named_port(ports: &[Value], name: &str) -> Option<u64> {
    let port = ports
        .iter()
        .find(|p| p["name"].as_str().unwrap_or("") == name);
    port.and_then(|p| p["port"].as_u64())
}

/// The document in an answer, or what a Go client says about an answer without one.
fn understand(response: &Response<Bytes>) -> Result<Value, String> {
    let code = response.status().as_u16();
    let document: Result<Value, _> = serde_json::from_slice(response.body());
    if (200..=206).contains(&code) {
        let value =
            document.map_err(|e| format!("couldn't get version/kind; json parse error: {e}"))?;
        if value
            .get("kind")
            .and_then(Value::as_str)
            .is_none_or(str::is_empty)
        {
            return Err(format!("Object 'Kind' is missing in '{value}'"));
        }
        return Ok(value);
    }
    if let Ok(status) = &document
        && status["kind"] == "Status"
        && let Some(message) = status["message"].as_str()
    {
        return Err(message.to_owned());
    }
    let content = response
        .headers()
        .get(CONTENT_TYPE)
        .and_then(|v| v.to_str().ok());
    let text = match content.is_none_or(|c| c.starts_with("text/")) {
        true => String::from_utf8_lossy(response.body()).trim().to_owned(),
        false => "unknown".to_owned(),
    };
    Err(match code {
        400 => "the server rejected our request for an unknown reason".into(),
        401 => "the server has asked for the client to provide credentials".into(),
        403 => text,
        404 => "the server could not find the requested resource".into(),
        405 => "the server does not allow this method on the requested resource".into(),
        429 => "the server has received too many requests and has asked us to try again later".into(),
        503 => "the server is currently unable to handle the request".into(),
        504 => "the server was unable to return a response in the time allotted, but may still be processing the request".into(),
        code if code >= 500 => {
            let mut message = String::new();
            let _ = write!(message, "an error on the server ({text:?}) has prevented the request from succeeding");
            message
        }
        code => format!("the server responded with the status code {code} but did not return more information"),
    })
}
