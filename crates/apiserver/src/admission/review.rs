//! The answer of a webhook: what makes it valid, and what a refusal tells the client.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::error::{ApiError, ApiResult};

/// The `response` of an AdmissionReview.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    allowed: bool,
    /// `result`, a `metav1.Status`
    result: Option<Value>,
    /// The decoded patch.
    pub patch: Option<Vec<u8>>,
    pub patch_type: String,
    pub warnings: Vec<String>,
}

/// A group, version and kind the way Go prints them.
fn printed(review: &Value) -> String {
    let api = review["apiVersion"].as_str().unwrap_or("");
    format!("{api}, Kind={}", review["kind"].as_str().unwrap_or(""))
}

impl Answer {
    /// Reads an answer and checks that it is one to the request with this uid.
    pub fn read(review: &Value, uid: &str, version: &str, mutating: bool) -> Result<Self, String> {
        let response = review
            .get("response")
            .filter(|r| r.is_object())
            .ok_or("webhook response was absent")?;
        let patch = match response.get("patch").and_then(Value::as_str) {
            None | Some("") => None,
            Some(text) => Some(STANDARD.decode(text).map_err(|e| e.to_string())?),
        };
        let patch_type = response.get("patchType").and_then(Value::as_str);
        let strict = version == "v1";
        if strict {
            let got = response["uid"].as_str().unwrap_or("");
            if got != uid {
                return Err(format!("expected response.uid={uid:?}, got {got:?}"));
            }
            let expected = "admission.k8s.io/v1, Kind=AdmissionReview";
            if printed(review) != expected {
                return Err(format!(
                    "expected webhook response of {expected}, got {}",
                    printed(review)
                ));
            }
            match (mutating, &patch, patch_type) {
                (true, Some(_), None) => {
                    return Err("webhook returned response.patch but not response.patchType".into());
                }
                (true, None, Some(_)) => {
                    return Err("webhook returned response.patchType but not response.patch".into());
                }
                (true, _, Some("")) => {
                    return Err("webhook returned invalid response.patchType of \"\"".into());
                }
                (false, Some(_), _) => {
                    return Err("validating webhook may not return response.patch".into());
                }
                (false, None, Some(_)) => {
                    return Err("validating webhook may not return response.patchType".into());
                }
                _ => {}
            }
        }
        let warnings = response.get("warnings").and_then(Value::as_array);
        let result = ["status", "result"].iter().find_map(|f| response.get(*f));
        Ok(Self {
            allowed: response["allowed"] == true,
            result: result.filter(|r| r.is_object()).cloned(),
            patch,
            patch_type: patch_type.unwrap_or("JSONPatch").to_owned(),
            warnings: warnings
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect(),
        })
    }

    /// The refusal, if it is one: never with a code below 400, always saying which webhook it was.
    pub fn verdict(&self, webhook: &str) -> ApiResult<()> {
        if self.allowed {
            return Ok(());
        }
        let mut status = self.result.clone().unwrap_or_else(|| json!({}));
        let denied = format!("admission webhook {webhook:?} denied the request");
        let text = |field: &str| status.get(field).and_then(Value::as_str).unwrap_or("");
        let message = match (text("message"), text("reason")) {
            ("", "") => format!("{denied} without explanation"),
            ("", reason) => format!("{denied}: {reason}"),
            (message, _) => format!("{denied}: {message}"),
        };
        status["message"] = json!(message);
        if status["code"]
            .as_u64()
            .is_none_or(|c| !(400..1000).contains(&c))
        {
            status["code"] = json!(400);
        }
        Err(ApiError::from_status(&status))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn review(response: Value) -> Value {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }

    #[test]
    fn answers_that_break_the_protocol_are_told_apart() {
        let cases = [
            (
                json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}),
                true,
                "webhook response was absent",
            ),
            (
                review(json!({"uid": "2", "allowed": true})),
                true,
                "expected response.uid=\"1\", got \"2\"",
            ),
            (
                json!({"apiVersion": "v1", "kind": "Pod", "response": {"uid": "1"}}),
                true,
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got v1, Kind=Pod",
            ),
            (
                review(json!({"uid": "1", "patch": "W10="})),
                true,
                "webhook returned response.patch but not response.patchType",
            ),
            (
                review(json!({"uid": "1", "patchType": "JSONPatch"})),
                true,
                "webhook returned response.patchType but not response.patch",
            ),
            (
                review(json!({"uid": "1", "patch": "W10=", "patchType": ""})),
                true,
                "webhook returned invalid response.patchType of \"\"",
            ),
            (
                review(json!({"uid": "1", "patch": "W10=", "patchType": "JSONPatch"})),
                false,
                "validating webhook may not return response.patch",
            ),
            (
                review(json!({"uid": "1", "patchType": "JSONPatch"})),
                false,
                "validating webhook may not return response.patchType",
            ),
        ];
        for (review, mutating, expected) in cases {
            assert_eq!(
                Answer::read(&review, "1", "v1", mutating).unwrap_err(),
                expected,
                "{review}"
            );
        }
    }

    #[test]
    fn a_refusal_has_a_code_of_400_or_more_and_names_its_webhook() {
        let cases = [
            (
                json!({}),
                400,
                "admission webhook \"x.y.z\" denied the request without explanation",
                None,
            ),
            (
                json!({"status": {"reason": "Forbidden"}}),
                400,
                "admission webhook \"x.y.z\" denied the request: Forbidden",
                Some("Forbidden"),
            ),
            (
                json!({"status": {"code": 403, "message": "no", "reason": "Forbidden"}}),
                403,
                "admission webhook \"x.y.z\" denied the request: no",
                Some("Forbidden"),
            ),
            (
                json!({"status": {"code": 200, "message": "no", "status": "Success"}}),
                400,
                "admission webhook \"x.y.z\" denied the request: no",
                None,
            ),
        ];
        for (mut response, code, message, reason) in cases {
            response["uid"] = json!("1");
            let answer = Answer::read(&review(response.clone()), "1", "v1", false).unwrap();
            let status = answer.verdict("x.y.z").unwrap_err().status();
            assert_eq!(
                (&status["code"], &status["message"]),
                (&json!(code), &json!(message)),
                "{response}"
            );
            assert_eq!(
                status.get("reason").and_then(Value::as_str),
                reason,
                "{response}"
            );
            assert_eq!(status["status"], "Failure");
        }
    }
}
