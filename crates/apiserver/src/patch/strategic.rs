//! Strategic merge patch.
use serde_json::Value;

use super::PatchError;

/// x
pub fn strategic(target: &mut Value, patch: &Value, _kind: &str) -> Result<(), PatchError> {
    super::merge(target, patch);
    Ok(())
}
