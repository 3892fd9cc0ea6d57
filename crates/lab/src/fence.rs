//! The end of a process as the network sees it: after it nothing that the process started reaches
//! a server any more, though its tasks may still be winding down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt};
use kube::Client;
use kube::client::Body;
use tower::{BoxError, Layer, Service};

/// One life of a process.
#[derive(Clone, Debug, Default)]
pub struct Fence(Arc<AtomicBool>);

impl Fence {
    /// Ends this life.
    pub fn kill(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// The same client, cut off at the end of this life.
    pub fn around(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_string();
        let inner = tower::service_fn(move |request: http::Request<Body>| {
            let client = client.clone();
            async move { client.send(request).await }
        });
        Client::new(self.layer(inner), namespace)
    }

    fn is_dead(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
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

impl<S, R> Service<R> for Fenced<S>
where
    S: Service<R>,
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

    fn call(&mut self, request: R) -> Self::Future {
        if self.fence.is_dead() {
            return async { Err("the process has ended".into()) }.boxed();
        }
        let answer = self.inner.call(request);
        async move { answer.await.map_err(Into::into) }.boxed()
    }
}
