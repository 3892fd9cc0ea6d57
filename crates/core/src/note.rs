//! What a decision wants a person to hear about: it becomes an Event about the decision's object.

use serde::{Deserialize, Serialize};

/// An event about the object that a decision is about. Decisions note transitions only, never
/// states: an unchanged world has nothing to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// Whether it is a Warning; else it is Normal.
    pub warning: bool,
    /// Why, in CamelCase.
    pub reason: String,
    /// A sentence.
    pub message: String,
}

impl Note {
    /// A note of something that went as intended.
    pub fn normal(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            warning: false,
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// A note of something that a person should look at.
    pub fn warning(reason: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            warning: true,
            reason: reason.into(),
            message: message.into(),
        }
    }
}
