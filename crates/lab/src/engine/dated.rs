//! What the real server, Kubernetes 1.20, is too old for and the product needs not cater to.
//!
//! Validation rules in CustomResourceDefinitions came with 1.23. An older server refuses a
//! server-side apply that holds them ("field not declared in schema"), so they are taken out on the way;
//! what they refuse is then refused by nobody there.
//!
//! `null` as a value of an `enum`, which a nullable field needs on newer servers, makes 1.20 refuse the
//! whole definition for another reason ("per-version schemas may not all be set to identical values").

use http::{Method, Request};
use kube::Client;
use kube::client::Body;
use serde_json::Value;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const RULES: &str = "x-kubernetes-validations";

/// The same client; the definitions that it writes hold nothing that 1.20 refuses.
pub fn without_news(client: Client) -> Client {
    let namespace = client.default_namespace().to_string();
    let inner = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        async move {
            let written = request.method() != Method::GET && request.method() != Method::DELETE;
            let request = if written && request.uri().path().starts_with(DEFINITIONS) {
                strip(request).await?
            } else {
                request
            };
            client.send(request).await
        }
    });
    Client::new(inner, namespace)
}

async fn strip(request: Request<Body>) -> kube::Result<Request<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect_bytes().await?;
    let Ok(mut object) = serde_json::from_slice::<Value>(&body) else {
        return Ok(Request::from_parts(head, body.into()));
    };
    forget(&mut object);
    Ok(Request::from_parts(
        head,
        object.to_string().into_bytes().into(),
    ))
}

fn forget(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove(RULES);
            if let Some(Value::Array(values)) = fields.get_mut("enum") {
                values.retain(|value| !value.is_null());
            }
            fields.values_mut().for_each(forget);
        }
        Value::Array(items) => items.iter_mut().for_each(forget),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_rules_and_nulls_of_enums_are_taken_out() {
        let body = r#"{"spec":{"versions":[{"schema":{"enum":["a",null],"minItems":2,"x-kubernetes-validations":[{"rule":"true"}]}}]}}"#;
        let request = Request::patch(DEFINITIONS)
            .body(Body::from(body.as_bytes().to_vec()))
            .unwrap();
        let stripped = strip(request)
            .await
            .unwrap()
            .into_body()
            .collect_bytes()
            .await
            .unwrap();
        assert_eq!(
            stripped,
            r#"{"spec":{"versions":[{"schema":{"enum":["a"],"minItems":2}}]}}"#
        );
    }
}
