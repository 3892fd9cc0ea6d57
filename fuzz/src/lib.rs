//! What a fuzzer sends to the API server, and what must hold for every answer.
//!
//! Each target turns bytes into one request that any client could send to a server in this process. The first byte
//! says which object is meant, the second is a set of [options](Input), and all that follows is what the parser gets.
//! Every write is a dry run, so that all requests of a process meet the same world.
//!
//! The server's own tests include this file, to send every input that was kept once more.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use farshore_apiserver::{ApiServer, ApiService, Options};
use http::{Method, Request};
use http_body_util::{BodyExt, Full};
use serde_json::Value;
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// The targets: one for each way in which bytes of a client reach a parser.
pub const TARGETS: [&str; 8] = [
    "apply",
    "body",
    "definition",
    "json_patch",
    "merge_patch",
    "protobuf",
    "selectors",
    "strategic_patch",
];

/// What is in the server: documents with the request that makes them.
const WORLD: &str = include_str!("world.txt");

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Objects of the world, and where a patch can reach them.
const OBJECTS: [&str; 10] = [
    "/apis/example.com/v1/namespaces/default/gadgets/g",
    "/api/v1/namespaces/default/configmaps/c",
    "/apis/apps/v1/namespaces/default/deployments/d",
    "/api/v1/namespaces/default/pods/p",
    "/api/v1/namespaces/default/services/s",
    "/apis/example.com/v1/namespaces/default/gadgets/g/status",
    "/apis/example.com/v1/namespaces/default/gadgets/g/scale",
    "/apis/apps/v1/namespaces/default/deployments/d/scale",
    "/api/v1/namespaces/default/pods/p/status",
    "/api/v1/namespaces/default",
];

/// Where objects are created: what a body says it is, and the path.
const COLLECTIONS: [(&str, &str, &str); 23] = [
    (
        "example.com/v1",
        "Gadget",
        "/apis/example.com/v1/namespaces/default/gadgets",
    ),
    ("v1", "ConfigMap", "/api/v1/namespaces/default/configmaps"),
    (
        "apps/v1",
        "Deployment",
        "/apis/apps/v1/namespaces/default/deployments",
    ),
    ("v1", "Pod", "/api/v1/namespaces/default/pods"),
    ("v1", "Service", "/api/v1/namespaces/default/services"),
    ("v1", "Secret", "/api/v1/namespaces/default/secrets"),
    (
        "apps/v1",
        "StatefulSet",
        "/apis/apps/v1/namespaces/default/statefulsets",
    ),
    ("batch/v1", "Job", "/apis/batch/v1/namespaces/default/jobs"),
    (
        "batch/v1",
        "CronJob",
        "/apis/batch/v1/namespaces/default/cronjobs",
    ),
    (
        "autoscaling/v2",
        "HorizontalPodAutoscaler",
        "/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "ClusterRole",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    ),
    (
        "rbac.authorization.k8s.io/v1",
        "RoleBinding",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings",
    ),
    (
        "coordination.k8s.io/v1",
        "Lease",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
    ),
    (
        "events.k8s.io/v1",
        "Event",
        "/apis/events.k8s.io/v1/namespaces/default/events",
    ),
    ("v1", "Event", "/api/v1/namespaces/default/events"),
    (
        "networking.k8s.io/v1",
        "Ingress",
        "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
    ),
    (
        "policy/v1",
        "PodDisruptionBudget",
        "/apis/policy/v1/namespaces/default/poddisruptionbudgets",
    ),
    (
        "v1",
        "PersistentVolumeClaim",
        "/api/v1/namespaces/default/persistentvolumeclaims",
    ),
    ("v1", "Namespace", "/api/v1/namespaces"),
    (
        "admissionregistration.k8s.io/v1",
        "ValidatingWebhookConfiguration",
        "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    ),
    (
        "authorization.k8s.io/v1",
        "SubjectAccessReview",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
    ),
    (
        "authentication.k8s.io/v1",
        "TokenReview",
        "/apis/authentication.k8s.io/v1/tokenreviews",
    ),
    (
        "policy/v1",
        "Eviction",
        "/api/v1/namespaces/default/pods/p/eviction",
    ),
];

/// What kube-apiserver answers with code 500 too, although it is the client's mistake.
const KNOWN_500: [&str; 4] = [
    "failed to create typed patch object (",
    "resourceVersion: Invalid value: ",
    "resourceVersion should not be set on objects to be created",
    "strconv.ParseUint: parsing ",
];

/// The bytes of a fuzzer: a choice, options as a set of four bits, and the text for the parser.
struct Input<'a> {
    choice: usize,
    options: u8,
    text: &'a [u8],
}

impl<'a> Input<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let (&[choice, options], text) = bytes.split_first_chunk()?;
        Some(Self {
            choice: choice.wrapping_sub(b'0').into(),
            options: options.wrapping_sub(b'0'),
            text,
        })
    }

    fn has(&self, bit: u8) -> bool {
        self.options & (1 << bit) != 0
    }

    fn one_of<T: Copy>(&self, all: &[T]) -> T {
        all[self.choice % all.len()]
    }

    /// The request, with the options that all targets share: bit 2 for strict field validation, bit 3 for a table.
    fn request(
        &self,
        method: Method,
        path: &str,
        kind: &str,
        body: impl Into<Bytes>,
    ) -> Request<Full<Bytes>> {
        let mut uri = path.to_owned();
        uri += if path.contains('?') { "&" } else { "?" };
        uri += "dryRun=All";
        if self.has(2) {
            uri += "&fieldValidation=Strict";
        }
        let accept = match self.has(3) {
            true => "application/json;as=Table;v=v1;g=meta.k8s.io,application/json",
            false => JSON,
        };
        Request::builder()
            .method(method)
            .uri(uri)
            .header("content-type", kind)
            .header("accept", accept)
            .body(Full::new(body.into()))
            .expect("the targets make URIs of known parts and encoded values")
    }
}

/// The request that the bytes are for this target; `None` for too few of them.
fn request(target: &str, bytes: &[u8]) -> Option<Request<Full<Bytes>>> {
    let input = Input::of(bytes)?;
    let text = input.text.to_vec();
    let patch = |kind, objects: &[&str]| {
        input.request(Method::PATCH, input.one_of(objects), kind, text.clone())
    };
    Some(match target {
        "json_patch" => patch("application/json-patch+json", &OBJECTS),
        "merge_patch" => patch("application/merge-patch+json", &OBJECTS),
        "strategic_patch" => patch("application/strategic-merge-patch+json", &OBJECTS[1..]),
        "apply" => apply(&input),
        "body" => body(&input),
        "definition" => {
            let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
            input.request(Method::POST, path, YAML, text)
        }
        "protobuf" => protobuf(&input),
        "selectors" => selectors(&input),
        _ => panic!("there is no target {target:?}"),
    })
}

/// Bit 0 for force, bit 1 for an object that is not there yet.
fn apply(input: &Input<'_>) -> Request<Full<Bytes>> {
    let object = input.one_of(&OBJECTS);
    let new = if input.has(1) && !object.contains("g/") && !object.contains("d/") {
        "2"
    } else {
        ""
    };
    let path = format!("{object}{new}?fieldManager=fuzz&force={}", input.has(0));
    input.request(
        Method::PATCH,
        &path,
        "application/apply-patch+yaml",
        input.text.to_vec(),
    )
}

/// Bit 0 for YAML, bit 1 for an update.
fn body(input: &Input<'_>) -> Request<Full<Bytes>> {
    let kind = if input.has(0) { YAML } else { JSON };
    let text = input.text.to_vec();
    match input.has(1) {
        true => input.request(Method::PUT, input.one_of(&OBJECTS), kind, text),
        false => input.request(Method::POST, input.one_of(&COLLECTIONS).2, kind, text),
    }
}

/// Bit 0 for bytes without an envelope: the request says the kind. Bit 1 for options of a deletion.
fn protobuf(input: &Input<'_>) -> Request<Full<Bytes>> {
    let (version, kind, path) = match input.has(1) {
        true => ("v1", "DeleteOptions", input.one_of(&OBJECTS[..5])),
        // There are no custom resources in protobuf.
        false => input.one_of(&COLLECTIONS[1..]),
    };
    let mut body = input.text.to_vec();
    if input.has(0) {
        let field = |number: u8, value: &[u8]| {
            let mut all = vec![(number << 3) | 2];
            let mut length = value.len();
            while length > 0x7f {
                all.push(((length & 0x7f) as u8) | 0x80);
                length >>= 7;
            }
            all.push(length as u8);
            all.extend_from_slice(value);
            all
        };
        let of = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
        body = [b"k8s\0".to_vec(), field(1, &of), field(2, &body)].concat();
    }
    let method = if input.has(1) {
        Method::DELETE
    } else {
        Method::POST
    };
    input.request(method, path, PROTOBUF, body)
}

/// One parameter to a line. Bit 0 when the continue token is still to be encoded, bit 1 for the deletion of what is
/// selected.
fn selectors(input: &Input<'_>) -> Request<Full<Bytes>> {
    const PARAMETERS: [&str; 8] = [
        "labelSelector",
        "fieldSelector",
        "continue",
        "resourceVersion",
        "resourceVersionMatch",
        "limit",
        "includeObject",
        "timeoutSeconds",
    ];
    let (_, _, path) = input.one_of(&COLLECTIONS[..6]);
    let mut path = format!("{path}?");
    for (name, value) in PARAMETERS.iter().zip(input.text.split(|b| *b == b'\n')) {
        let value = match *name == "continue" && !value.is_empty() && input.has(0) {
            true => URL_SAFE_NO_PAD.encode(value).into_bytes(),
            false => value.to_vec(),
        };
        let value: String = value.iter().map(|b| format!("%{b:02X}")).collect();
        path += &format!("{name}={value}&");
    }
    let method = if input.has(1) {
        Method::DELETE
    } else {
        Method::GET
    };
    input.request(method, path.trim_end_matches('&'), JSON, Bytes::new())
}

/// A server with one object of each sort.
struct World {
    runtime: Runtime,
    service: ApiService,
}

impl World {
    fn new() -> Self {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime needs no more than memory");
        let (server, background) = {
            let _entered = runtime.enter();
            let server = ApiServer::new(Options::default());
            let background = server.spawn(Default::default());
            (server, background)
        };
        let service = server.service(Some(&server.admin_token()));
        let world = Self { runtime, service };
        for document in WORLD.split("---\n") {
            let (head, body) = document.split_once('\n').expect("a document has a head");
            let mut words = head.split_whitespace().skip(1);
            let (method, path) = (
                words.next().expect("a method"),
                words.next().expect("a path"),
            );
            let (kind, query) = match method {
                "PATCH" => ("application/apply-patch+yaml", "?fieldManager=world"),
                _ => (YAML, ""),
            };
            let request = Request::builder()
                .method(method)
                .uri(format!("{path}{query}"));
            let request = request
                .header("content-type", kind)
                .body(Full::new(Bytes::from(body)));
            let (code, answer) = world.send(request.expect("the world has plain paths"));
            assert!(
                code < 300,
                "{path}: {code} {}",
                String::from_utf8_lossy(&answer)
            );
        }
        // What follows from the world is done now, and nothing may follow from a dry run.
        world
            .runtime
            .block_on(async { tokio::time::sleep(Duration::from_secs(5)).await });
        background.abort();
        server.observe(|commit| panic!("a dry run has changed an object: {}", commit.object));
        world
    }

    fn send(&self, request: Request<Full<Bytes>>) -> (u16, Bytes) {
        self.runtime.block_on(async {
            let answer = self
                .service
                .clone()
                .oneshot(request)
                .await
                .expect("the server is up");
            let code = answer.status().as_u16();
            let body = answer
                .into_body()
                .collect()
                .await
                .expect("an answer is whole");
            (code, body.to_bytes())
        })
    }
}

/// Sends what the bytes are for this target; the code of the answer, or `None` for too few bytes. Panics when the
/// answer is none that a client could live with.
pub fn check(target: &str, bytes: &[u8]) -> Option<u16> {
    thread_local! {
        static WORLD: World = World::new();
    }
    let request = request(target, bytes)?;
    let asked = format!("{} {}", request.method(), request.uri());
    let (code, body) = WORLD.with(|world| world.send(request));
    if let Err(why) = sound(code, &body) {
        let body = String::from_utf8_lossy(&body);
        panic!("{asked} was answered with {code}, {why}: {body}");
    }
    Some(code)
}

/// Whether an answer is an object, or a refusal that says what is wrong with the request.
fn sound(code: u16, body: &[u8]) -> Result<(), String> {
    let value: Value = serde_json::from_slice(body).map_err(|e| format!("no JSON ({e})"))?;
    let text = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion").is_empty() || text("kind").is_empty() {
        return Err("without a kind or an apiVersion".into());
    }
    if matches!(code, 200 | 201) {
        return match value.get("metadata") {
            Some(Value::Object(_)) => Ok(()),
            // Reviews are answered with what was sent.
            None if text("kind").ends_with("Review") => Ok(()),
            _ => Err("without metadata".into()),
        };
    }
    if text("kind") != "Status" || text("status") != "Failure" || value["code"] != code {
        return Err("which is no Status of a failure".into());
    }
    if text("message").is_empty() {
        return Err("and no message".into());
    }
    match code {
        400..500 => match text("reason").is_empty() {
            true => Err("and no reason".into()),
            false => Ok(()),
        },
        500 if KNOWN_500
            .iter()
            .any(|known| text("message").starts_with(known)) =>
        {
            Ok(())
        }
        501 | 504 if !text("reason").is_empty() => Ok(()),
        _ => Err("which says that the server is broken".into()),
    }
}
