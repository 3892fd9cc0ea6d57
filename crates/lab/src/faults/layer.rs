//! The wire that [`Faults`] are worked on: a layer between a client and an API server of this process.

use std::convert::Infallible;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use farshore_apiserver::ApiBody;
use futures::future::{BoxFuture, FutureExt};
use futures::stream;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use serde_json::json;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

use super::{Faults, Instead, Kind, Misery, Route, Traffic, Window};

/// How long a client waits for an answer, as the product's clients do over a network.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Puts the faults of a route before a server.
#[derive(Clone)]
pub struct FaultLayer {
    /// The faults.
    pub faults: Faults,
    /// From whom to whom.
    pub route: Route,
}

impl<S> Layer<S> for FaultLayer {
    type Service = Faulty<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Faulty {
            inner,
            layer: self.clone(),
        }
    }
}

/// A connection on which faults happen.
#[derive(Clone)]
pub struct Faulty<S> {
    inner: S,
    layer: FaultLayer,
}

type Answer = Result<Response<ApiBody>, BoxError>;

impl<S, B> Service<Request<B>> for Faulty<S>
where
    S: Service<Request<B>, Response = Response<ApiBody>, Error = BoxError> + Clone + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ApiBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Answer>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let target = request.uri().path_and_query().map_or("", |t| t.as_str());
        let kind = kind_of(request.method(), target);
        // A watch lives to see the faults that are set while it is open.
        if kind != Kind::Watch && !self.layer.faults.matter() {
            return self.inner.call(request).boxed();
        }
        let (inner, FaultLayer { faults, route }) = (self.inner.clone(), self.layer.clone());
        async move {
            let method = request.method().clone();
            let uri = request.uri().clone();
            let target = uri.path_and_query().map_or("", |t| t.as_str());
            let passing = pass(&faults, &route, inner, request, kind);
            let answer = if kind == Kind::Watch {
                passing.await
            } else {
                tokio::time::timeout(ANSWER_LIMIT, passing)
                    .await
                    .unwrap_or_else(|_| Err(broken("no answer within 30 s")))
            };
            let outcome = match &answer {
                Ok(response) => response.status().as_str().to_owned(),
                Err(error) => error.to_string(),
            };
            faults.tell(&Traffic {
                route: &route,
                method: method.as_str(),
                target,
                outcome: &outcome,
            });
            if kind != Kind::Watch {
                return answer;
            }
            answer.map(|response| response.map(|body| suffering(body, faults, route)))
        }
        .boxed()
    }
}

fn kind_of(method: &Method, target: &str) -> Kind {
    let watches = |query: &str| {
        query
            .split('&')
            .any(|p| matches!(p, "watch=true" | "watch=1"))
    };
    if method == Method::GET && target.split_once('?').is_some_and(|(_, q)| watches(q)) {
        Kind::Watch
    } else if method == Method::PUT || method == Method::PATCH {
        Kind::Change
    } else {
        Kind::Other
    }
}

fn broken(why: &str) -> BoxError {
    format!("connection broken: {why}").into()
}

/// The way there, the server's work, and the way back.
async fn pass<S, B>(
    faults: &Faults,
    route: &Route,
    mut inner: S,
    request: Request<B>,
    kind: Kind,
) -> Answer
where
    S: Service<Request<B>, Response = Response<ApiBody>, Error = BoxError> + Send + 'static,
    S::Future: Send + 'static,
    B: Send + 'static,
{
    heal(faults, route).await;
    let fate = faults.fate(route, kind);
    if fate.dropped {
        return Err(broken("before the request was sent"));
    }
    let answer = match fate.answer {
        Some(instead) => {
            tokio::time::sleep(fate.there).await;
            Ok(respond(instead)?)
        }
        None => {
            // From here on it lands, whatever becomes of the client.
            let work = tokio::spawn(async move {
                tokio::time::sleep(fate.there).await;
                inner.call(request).await
            });
            work.await.map_err(|e| broken(&e.to_string()))?
        }
    };
    if fate.lost {
        return Err(broken("before the answer was received"));
    }
    tokio::time::sleep(fate.back).await;
    heal(faults, route).await;
    answer
}

/// Waits while the route is partitioned.
async fn heal(faults: &Faults, route: &Route) {
    while let Some(end) = faults.partitioned_until(route) {
        tokio::time::sleep_until(end).await;
    }
}

fn status(code: u16, reason: &str, message: &str) -> serde_json::Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    })
}

fn expired() -> Bytes {
    let status = status(410, "Expired", "too old resource version (injected)");
    Bytes::from(format!(
        "{}\n",
        json!({ "type": "ERROR", "object": status })
    ))
}

fn respond(instead: Instead) -> Result<Response<ApiBody>, http::Error> {
    let builder = Response::builder().header("content-type", "application/json");
    let (builder, text) = match instead {
        Instead::Expired => (builder.status(200), expired()),
        Instead::ServerError(code) => {
            let reason = if code == 500 {
                "InternalError"
            } else {
                "ServiceUnavailable"
            };
            let status = status(code, reason, "the server is out of order (injected)");
            (builder.status(code), Bytes::from(status.to_string()))
        }
        Instead::TooMany(seconds) => {
            let status = status(429, "TooManyRequests", "too many requests (injected)");
            let builder = builder
                .status(429)
                .header("retry-after", seconds.to_string());
            (builder, Bytes::from(status.to_string()))
        }
        Instead::Conflict => {
            let message = "the object has been modified; please apply your changes to the latest version and try again (injected)";
            let status = status(409, "Conflict", message);
            (builder.status(409), Bytes::from(status.to_string()))
        }
    };
    let body = Full::new(text)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync();
    builder.body(body)
}

/// An open watch and the bad times ahead of it.
struct Suffering {
    body: ApiBody,
    faults: Faults,
    route: Route,
    /// When it was opened, and under which plan.
    born: (Instant, u64),
    /// The plan that the bad times are of.
    plan: u64,
    windows: Vec<Window>,
    over: bool,
}

fn suffering(body: ApiBody, faults: Faults, route: Route) -> ApiBody {
    let born = (Instant::now(), faults.plan());
    let state = Suffering {
        born,
        plan: born.1,
        windows: faults.windows(&route, born),
        body,
        faults,
        route,
        over: false,
    };
    let frames = stream::unfold(state, |mut state| async move {
        state.next().await.map(|frame| (frame, state))
    });
    StreamBody::new(frames).boxed_unsync()
}

impl Suffering {
    async fn next(&mut self) -> Option<Result<Frame<Bytes>, BoxError>> {
        loop {
            if self.over {
                return None;
            }
            let now = Instant::now();
            if self.plan != self.faults.plan() {
                self.plan = self.faults.plan();
                self.windows = self.faults.windows(&self.route, self.born);
            }
            if self.windows.first().is_some_and(|w| w.from <= now) {
                let window = self.windows.remove(0);
                match window.how {
                    Misery::Stale => outlast(&self.faults, self.plan, &window).await,
                    // Nobody brings back a connection that lost its other end.
                    Misery::Silent => std::future::pending().await,
                    Misery::Partition => {
                        outlast(&self.faults, self.plan, &window).await;
                        self.over = true;
                        return Some(Err(broken("after a partition")));
                    }
                    Misery::Expired => {
                        self.over = true;
                        return Some(Ok(Frame::data(expired())));
                    }
                }
                continue;
            }
            let next = self.windows.first().map(|w| w.from);
            tokio::select! {
                biased;
                () = self.faults.planned_after(self.plan) => {}
                () = tokio::time::sleep_until(next.unwrap_or(now)), if next.is_some() => {}
                frame = self.body.frame() => return frame,
            }
        }
    }
}

/// Waits until these bad times of a plan are over, or another plan takes its place.
async fn outlast(faults: &Faults, plan: u64, window: &Window) {
    tokio::select! {
        biased;
        () = faults.planned_after(plan) => {}
        () = tokio::time::sleep_until(window.to) => {}
    }
}
