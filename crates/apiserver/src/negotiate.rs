//! Content negotiation: in which form the client wants objects back.

use http::HeaderMap;
use http::header::ACCEPT;

use crate::error::{ApiError, ApiResult};

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Whole objects.
    Object,
    /// `meta.k8s.io` PartialObjectMetadata.
    Metadata {
        v1beta1: bool,
        /// Asked for as a list of them.
        list: bool,
    },
    /// `meta.k8s.io` Table.
    Table { v1beta1: bool },
}

/// One media range of an Accept header.
#[derive(Clone, Debug, Default)]
pub(crate) struct MediaType {
    pub name: String,
    params: Vec<(String, String)>,
}

impl MediaType {
    pub fn param(&self, key: &str) -> Option<&str> {
        self.params
            .iter()
            .find(|(k, _)| k == key)
            .map(|(_, v)| v.as_str())
    }
}

/// The media ranges a client accepts, in order; none sent means anything.
pub(crate) fn accepted(headers: &HeaderMap) -> Vec<MediaType> {
    let mut all = Vec::new();
    for range in headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
    {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        if !name.is_empty() {
            let params = parts
                .filter_map(|p| p.split_once('='))
                .map(|(k, v)| (k.trim().to_owned(), v.trim().to_owned()));
            all.push(MediaType {
                name,
                params: params.collect(),
            });
        }
    }
    if all.is_empty() {
        all.push(MediaType {
            name: "*/*".into(),
            params: Vec::new(),
        });
    }
    all
}

fn is_json(name: &str) -> bool {
    matches!(name, "application/json" | "*/*")
}

/// Whether a client accepts one of the media types of the API at all.
pub(crate) fn acceptable(headers: &HeaderMap) -> ApiResult<()> {
    let known = |name: &str| {
        is_json(name)
            || matches!(
                name,
                "application/yaml" | "application/vnd.kubernetes.protobuf"
            )
    };
    if accepted(headers).iter().any(|media| known(&media.name)) {
        return Ok(());
    }
    Err(ApiError::new(406, "NotAcceptable", "406: Not Acceptable").generic())
}

/// Chooses the first form this server can give; what is not stored has no `tables`. 406 when there is none.
pub(crate) fn form(headers: &HeaderMap, tables: bool) -> ApiResult<Form> {
    acceptable(headers)?;
    for media in accepted(headers) {
        if !is_json(&media.name) && media.name != "application/yaml" {
            continue;
        }
        // Of a form group and version must be told, and without one they say nothing.
        let v1beta1 = match (media.param("v"), media.param("as")) {
            (None, None) => false,
            (Some("v1"), Some(_)) => false,
            (Some("v1beta1"), Some(_)) => true,
            _ => continue,
        };
        match (media.param("as"), media.param("g")) {
            (None, None) => return Ok(Form::Object),
            (Some("Table"), Some("meta.k8s.io")) if tables => return Ok(Form::Table { v1beta1 }),
            (
                Some(kind @ ("PartialObjectMetadata" | "PartialObjectMetadataList")),
                Some("meta.k8s.io"),
            ) => {
                return Ok(Form::Metadata {
                    v1beta1,
                    list: kind == "PartialObjectMetadataList",
                });
            }
            _ => {}
        }
    }
    Err(ApiError::not_acceptable())
}

/// The request's media type without parameters; JSON when absent.
pub(crate) fn content_type(headers: &HeaderMap) -> String {
    let header = headers
        .get(http::header::CONTENT_TYPE)
        .and_then(|v| v.to_str().ok())
        .filter(|v| !v.is_empty())
        .unwrap_or("application/json");
    let named = header.split(';').next().unwrap_or_default().trim();
    match named {
        // Something was sent, and it is no media type.
        "" => "unknown".into(),
        named => named.to_ascii_lowercase(),
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn form_of(accept: &'static str) -> Option<Form> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        form(&headers, true).ok()
    }

    #[test]
    fn the_first_form_that_can_be_given_wins() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(form_of(table), Some(Form::Table { v1beta1: false }));
        assert_eq!(
            form_of("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"),
            Some(Form::Metadata {
                v1beta1: false,
                list: false
            })
        );
        assert_eq!(
            form_of("application/vnd.kubernetes.protobuf,application/json"),
            Some(Form::Object)
        );
        assert_eq!(
            form_of("application/json;as=Table;v=v9;g=meta.k8s.io,*/*"),
            Some(Form::Object)
        );
        assert_eq!(form_of("application/vnd.kubernetes.protobuf"), None);
    }
}
