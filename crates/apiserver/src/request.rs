//! What a request asks for: the path taken apart, and its query parameters.

/// The path of a request, taken apart the way Kubernetes does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Target {
    pub group: String,
    pub version: String,
    pub resource: String,
    pub namespace: String,
    pub name: String,
    pub subresource: String,
}

impl Target {
    /// `None` when the path is not that of a resource.
    pub fn parse(path: &str) -> Option<Self> {
        let parts: Vec<String> = path
            .split('/')
            .filter(|p| !p.is_empty())
            .map(decode)
            .collect();
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        let mut target = Self {
            group: group.into(),
            version: version.into(),
            ..Self::default()
        };
        let rest = match rest {
            // A namespace's own subresources are those of the object, not a resource inside it.
            ["namespaces", _, "status" | "finalize"] => rest,
            ["namespaces", namespace, inner @ ..] if !inner.is_empty() => {
                target.namespace = (*namespace).into();
                inner
            }
            other => other,
        };
        let (resource, rest) = rest.split_first()?;
        target.resource = (*resource).into();
        if let Some((name, rest)) = rest.split_first() {
            target.name = (*name).into();
            target.subresource = rest.join("/");
        }
        if target.group.is_empty() && target.resource == "namespaces" {
            // The namespace of a Namespace object is itself for authorization; the store keeps it cluster-scoped.
            target.namespace = String::new();
        }
        Some(target)
    }
}

/// Query parameters in the order sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub fn parse(query: &str) -> Self {
        let pairs = query.split('&').filter(|p| !p.is_empty()).map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            (
                decode(&key.replace('+', " ")),
                decode(&value.replace('+', " ")),
            )
        });
        Self(pairs.collect())
    }

    /// The first value of a parameter; an empty value counts as absent.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(k, v)| k == key && !v.is_empty())
            .map(|(_, v)| v.as_str())
    }

    /// All values, empty ones too.
    pub fn given(&self, key: &str) -> Vec<String> {
        let values = self.0.iter().filter(|(k, _)| k == key);
        values.map(|(_, v)| v.clone()).collect()
    }

    /// Whether a parameter is on: any value but `0` and `false` is, an empty one too.
    pub fn flag(&self, key: &str) -> bool {
        let value = self.0.iter().find(|(k, _)| k == key).map(|(_, v)| v);
        value.is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }
}

/// Percent-decoding; a broken escape stays as it is.
fn decode(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let escape = bytes
            .get(i + 1..i + 3)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match (bytes[i], escape) {
            (b'%', Some(byte)) => {
                out.push(byte);
                i += 3;
            }
            (byte, _) => {
                out.push(byte);
                i += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(path: &str) -> (String, String, String, String, String) {
        let t = Target::parse(path).unwrap();
        (t.group, t.resource, t.namespace, t.name, t.subresource)
    }

    fn expect(
        group: &str,
        resource: &str,
        namespace: &str,
        name: &str,
        sub: &str,
    ) -> (String, String, String, String, String) {
        (
            group.into(),
            resource.into(),
            namespace.into(),
            name.into(),
            sub.into(),
        )
    }

    #[test]
    fn paths_are_taken_apart_as_kubernetes_does() {
        assert_eq!(
            parse("/api/v1/namespaces"),
            expect("", "namespaces", "", "", "")
        );
        assert_eq!(
            parse("/api/v1/namespaces/a"),
            expect("", "namespaces", "", "a", "")
        );
        assert_eq!(
            parse("/api/v1/namespaces/a/status"),
            expect("", "namespaces", "", "a", "status")
        );
        assert_eq!(
            parse("/api/v1/namespaces/a/pods"),
            expect("", "pods", "a", "", "")
        );
        assert_eq!(
            parse("/apis/apps/v1/namespaces/a/deployments/b/scale"),
            expect("apps", "deployments", "a", "b", "scale")
        );
        assert_eq!(
            parse("/apis/x.io/v1/widgets/b"),
            expect("x.io", "widgets", "", "b", "")
        );
        assert_eq!(
            parse("/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Anode"),
            expect(
                "rbac.authorization.k8s.io",
                "clusterroles",
                "",
                "system:node",
                ""
            )
        );
        assert_eq!(Target::parse("/healthz"), None);
        assert_eq!(Target::parse("/apis/apps/v1"), None);
    }

    #[test]
    fn query_values_are_decoded() {
        let q = Query::parse("fieldSelector=metadata.name%3Da&watch=1&limit=&x=a+b");
        assert_eq!(q.get("fieldSelector"), Some("metadata.name=a"));
        assert!(q.flag("watch"));
        assert_eq!(q.get("limit"), None);
        assert_eq!(q.get("x"), Some("a b"));
    }
}
