//! How long a client waits: for an answer, and for a sign of life of a watch.

use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Full, StreamBody};
use kube::client::Body;
use tower::{BoxError, Layer, Service};

/// Time for a whole answer, watches and followed logs excepted.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// A watch that says nothing for so long is ended, and so opened anew: a kube-apiserver sends a bookmark
/// about every minute to who asks for them, as every watch here does, and where it sends none, opening the
/// watch again costs one request. Without this a connection that lost its
/// other end would keep a process blind until the watch's own end, which is longer than a failover may
/// take.
const SILENCE_LIMIT: Duration = Duration::from_secs(90);

/// Bounds the time of every answer that has an end, and the silence of every watch.
#[derive(Clone, Copy, Debug)]
pub struct PatienceLayer;

impl<S> Layer<S> for PatienceLayer {
    type Service = Patience<S>;
    fn layer(&self, inner: S) -> Self::Service {
        Patience(inner)
    }
}

/// A connection that is not waited for without end.
#[derive(Clone, Debug)]
pub struct Patience<S>(S);

type AnyBody = UnsyncBoxBody<Bytes, BoxError>;

impl<S, B> Service<Request<Body>> for Patience<S>
where
    S: Service<Request<Body>, Response = Response<B>, Error: Into<BoxError>>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    type Response = Response<AnyBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        self.0.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let asks = |what: &[&str]| {
            let query = request.uri().query().unwrap_or_default();
            query.split('&').any(|p| what.contains(&p))
        };
        let watches = asks(&["watch=true", "watch=1"]);
        let endless = watches || asks(&["follow=true"]);
        let target = format!("{} {}", request.method(), request.uri().path());
        let answer = self.0.call(request);
        if endless {
            // Only the head is bounded: an API server sends it at once.
            return Box::pin(async move {
                let head = tokio::time::timeout(ANSWER_LIMIT, answer)
                    .await
                    .map_err(|_| late(&target))?;
                Ok(head.map_err(Into::into)?.map(|body| {
                    if watches {
                        until_silent(body, target)
                    } else {
                        body.map_err(Into::into).boxed_unsync()
                    }
                }))
            });
        }
        Box::pin(async move {
            let whole = async {
                let (head, body) = answer.await.map_err(Into::into)?.into_parts();
                let bytes = body.collect().await.map_err(Into::into)?.to_bytes();
                Ok(Response::from_parts(
                    head,
                    Full::new(bytes)
                        .map_err(|never| match never {})
                        .boxed_unsync(),
                ))
            };
            tokio::time::timeout(ANSWER_LIMIT, whole)
                .await
                .map_err(|_| late(&target))?
        })
    }
}

/// The body until it ends or falls silent. It ends then as one whose time is over: the watcher goes on
/// from where it was.
fn until_silent<B>(body: B, target: String) -> AnyBody
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    let frames = Box::pin(BodyStream::new(body));
    let heard = stream::unfold((frames, target), |(mut frames, target)| async move {
        let Ok(frame) = tokio::time::timeout(SILENCE_LIMIT, frames.next()).await else {
            let seconds = SILENCE_LIMIT.as_secs();
            tracing::info!("the watch {target} said nothing for {seconds} s and is opened anew");
            return None;
        };
        frame.map(|frame| (frame.map_err(Into::into), (frames, target)))
    });
    StreamBody::new(heard).boxed_unsync()
}

fn late(target: &str) -> BoxError {
    format!(
        "the API server did not answer {target} within {} s",
        ANSWER_LIMIT.as_secs()
    )
    .into()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::Stream;
    use http_body::Frame;
    use tokio::time::Instant;

    use super::*;

    /// A server whose answers are `frames`, and then nothing more, without an end.
    fn server(
        every: Duration,
        frames: usize,
    ) -> impl Service<
        Request<Body>,
        Response = Response<StreamBody<impl Stream<Item = Result<Frame<Bytes>, Infallible>>>>,
        Error = Infallible,
        Future: Send,
    > {
        tower::service_fn(move |_| {
            let said = stream::iter(0..frames).then(move |_| async move {
                tokio::time::sleep(every).await;
                Ok(Frame::data(Bytes::from_static(b"x")))
            });
            let body = StreamBody::new(said.chain(stream::pending()));
            std::future::ready(Ok(Response::new(body)))
        })
    }

    async fn get(every: u64, frames: usize, target: &str) -> (u64, Result<usize, String>) {
        let begun = Instant::now();
        let request = Request::get(target).body(Body::empty()).unwrap();
        let mut client = PatienceLayer.layer(server(Duration::from_secs(every), frames));
        let said = async {
            let body = client.call(request).await?.into_body();
            Ok::<_, BoxError>(body.collect().await?.to_bytes().len())
        };
        let said = said.await.map_err(|e| e.to_string());
        (begun.elapsed().as_secs(), said)
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_lasts_while_it_says_something_and_ends_in_silence() {
        let ended = get(60, 10, "/api/v1/pods?watch=true").await;
        assert_eq!(ended, (10 * 60 + 90, Ok(10)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_does_not_end_is_an_error() {
        let (after, said) = get(20, 10, "/api/v1/pods").await;
        let said = said.unwrap_err();
        assert_eq!(after, 30);
        assert!(said.contains("GET /api/v1/pods within 30 s"), "{said}");
    }
}
