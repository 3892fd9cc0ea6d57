//! The server as a `tower` service.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::TryStreamExt;
use http::header::{CONTENT_TYPE, WARNING};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use tower::BoxError;

use crate::body::{self, ReadError};
use crate::error::ApiError;
use crate::fault::Down;
use crate::handlers::{self, Reply, ReplyBody};
use crate::peer::Peer;
use crate::server::Server;

/// Body of an answer: whole, or a stream of watch events.
pub type ApiBody = UnsyncBoxBody<Bytes, BoxError>;

/// Answers Kubernetes API requests in-process. An error stands for a connection that broke or was refused.
#[derive(Clone)]
pub struct ApiService {
    server: Arc<Server>,
    token: Option<String>,
    peer: Peer,
}

impl ApiService {
    pub(crate) fn new(server: Arc<Server>, token: Option<String>) -> Self {
        Self {
            server,
            token,
            peer: Peer::Unknown,
        }
    }

    /// For one connection whose client showed a certificate, or none.
    pub(crate) fn of_peer(server: Arc<Server>, peer: Peer) -> Self {
        Self {
            server,
            token: None,
            peer,
        }
    }
}

impl<B> tower::Service<Request<B>> for ApiService
where
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Response = Response<ApiBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self {
            server,
            token,
            peer,
        } = self.clone();
        Box::pin(async move {
            if !server.fault.enter().await {
                return Err(Down(server.name.clone()).into());
            }
            let (parts, body) = request.into_parts();
            let body = match body::read(body).await {
                Ok(bytes) => Ok(bytes),
                Err(ReadError::TooLarge) => Err(ApiError::too_large()),
                Err(ReadError::Broken(error)) => return Err(error),
            };
            let reply = handlers::handle(&server, &parts, body, token.as_deref(), &peer).await;
            response(reply)
        })
    }
}

fn response(reply: Reply) -> Result<Response<ApiBody>, BoxError> {
    let body = match reply.body {
        ReplyBody::Whole(bytes) => Full::new(bytes)
            .map_err(|never: Infallible| match never {})
            .boxed_unsync(),
        ReplyBody::Stream(stream) => StreamBody::new(stream.map_ok(Frame::data)).boxed_unsync(),
    };
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(reply.code)?;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_str(&reply.content_type)?);
    headers.insert(
        "cache-control",
        HeaderValue::from_static("no-cache, private"),
    );
    for warning in &reply.warnings {
        let text: String = warning
            .chars()
            .map(|c| {
                if c == '"' {
                    "\\\"".to_owned()
                } else {
                    c.to_string()
                }
            })
            .collect();
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            headers.append(WARNING, value);
        }
    }
    for (name, value) in reply.headers {
        headers.insert(
            HeaderName::from_static(name),
            HeaderValue::from_str(&value)?,
        );
    }
    Ok(response)
}
