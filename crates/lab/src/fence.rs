//! The end of a process as the network sees it: after it nothing that the process started reaches
//! a server any more, though its tasks may still be winding down. A process can be told to die at
//! one of its writes: just before it is sent, or after it was carried out and before the answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt};
use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;
use tower::{BoxError, Layer, Service};

/// One life of a process.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<Life>);

#[derive(Debug, Default)]
struct Life {
    process: String,
    cluster: String,
    dead: CancellationToken,
    doom: Mutex<Option<(u32, Moment)>>,
}

/// When at a write a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// The write is not sent.
    BeforeSent,
    /// The write is carried out; its answer is never read.
    AfterApplied,
}

impl Fence {
    /// A life of this process on this cluster.
    pub fn of(process: &str, cluster: &str) -> Self {
        Self(Arc::new(Life {
            process: process.into(),
            cluster: cluster.into(),
            ..Life::default()
        }))
    }

    /// The process and the cluster that it runs on; both empty for whoever is no process of ours.
    pub fn who(&self) -> (&str, &str) {
        (&self.0.process, &self.0.cluster)
    }

    /// Ends this life.
    pub fn kill(&self) {
        self.0.dead.cancel();
    }

    /// Ends this life at its `n`-th write from now, counted from 1.
    pub fn kill_at_write(&self, n: u32, moment: Moment) {
        *self.0.doom.lock().unwrap_or_else(PoisonError::into_inner) = Some((n.max(1), moment));
    }

    /// Waits for the end.
    pub async fn dead(&self) {
        self.0.dead.cancelled().await;
    }

    /// The same client, cut off at the end of this life.
    pub fn around(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_string();
        let inner = tower::service_fn(move |request: Request<Body>| {
            let client = client.clone();
            async move { client.send(request).await }
        });
        Client::new(self.layer(inner), namespace)
    }

    fn is_dead(&self) -> bool {
        self.0.dead.is_cancelled()
    }

    /// Counts a write; says when the process dies, if it is this one.
    fn writes(&self) -> Option<Moment> {
        let mut doom = self.0.doom.lock().unwrap_or_else(PoisonError::into_inner);
        let (left, moment) = doom.as_mut()?;
        *left -= 1;
        let moment = *moment;
        if *left > 0 {
            return None;
        }
        *doom = None;
        Some(moment)
    }
}

/// Whether a request may change something.
pub(crate) fn is_write<B>(request: &Request<B>) -> bool {
    !matches!(
        *request.method(),
        Method::GET | Method::HEAD | Method::OPTIONS
    )
}

impl<S> Layer<S> for Fence {
    type Service = Fenced<S>;

    fn layer(&self, inner: S) -> Self::Service {
        Fenced {
            inner,
            fence: self.clone(),
        }
    }
}

/// A client's connection that its process's end cuts.
#[derive(Clone, Debug)]
pub struct Fenced<S> {
    inner: S,
    fence: Fence,
}

impl<S, B> Service<Request<B>> for Fenced<S>
where
    S: Service<Request<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
{
    type Response = S::Response;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<S::Response, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let gone = || -> BoxError { "the process has ended".into() };
        if self.fence.is_dead() {
            return async move { Err(gone()) }.boxed();
        }
        let dies = if is_write(&request) {
            self.fence.writes()
        } else {
            None
        };
        if dies == Some(Moment::BeforeSent) {
            self.fence.kill();
            return async move { Err(gone()) }.boxed();
        }
        let (answer, fence) = (self.inner.call(request), self.fence.clone());
        async move {
            let answer = answer.await.map_err(Into::into);
            if dies == Some(Moment::AfterApplied) {
                fence.kill();
            }
            // What arrives after the end is not read.
            if fence.is_dead() {
                return Err(gone());
            }
            answer
        }
        .boxed()
    }
}
