//! When a kubeconfig's credential expires. Nothing else of it leaves this file.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;

/// Expiry of the token of the kubeconfig's current user, if it is a JSON Web Token that says so.
pub fn not_after(kubeconfig: &[u8]) -> Option<Time> {
    let file: Value = serde_saphyr::from_str(std::str::from_utf8(kubeconfig).ok()?).ok()?;
    let named = |list: &str, name: &str| {
        file[list]
            .as_array()?
            .iter()
            .find(|entry| entry["name"] == name)
    };
    let context = named("contexts", file["current-context"].as_str()?)?;
    let user = named("users", context["context"]["user"].as_str()?)?;
    let claims = user["user"]["token"].as_str()?.split('.').nth(1)?;
    let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).ok()?).ok()?;
    Timestamp::from_second(claims["exp"].as_i64()?)
        .ok()
        .map(Time)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(token: &str) -> String {
        format!(
            "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\nclusters: []\nusers: [{{name: other, user: {{}}}}, {{name: u, user: {{token: '{token}'}}}}]\n"
        )
    }

    #[test]
    fn the_expiry_of_a_web_token_is_found_and_an_opaque_one_has_none() {
        let claims = URL_SAFE_NO_PAD.encode(r#"{"exp":1800000000,"sub":"x"}"#);
        let expiry = not_after(kubeconfig(&format!("e30.{claims}.sig")).as_bytes()).unwrap();
        assert_eq!(expiry.0.as_second(), 1_800_000_000);
        assert_eq!(not_after(kubeconfig("opaque").as_bytes()), None);
        assert_eq!(not_after(b": no kubeconfig"), None);
    }
}
