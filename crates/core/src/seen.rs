//! Absent, unreachable and present are three different values.

use serde::{Deserialize, Serialize};

/// What a look at another cluster showed. In disaster recovery the difference between `Absent` and
/// `Unknown` is the product: never act on unknown as if it were absent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Seen<T> {
    /// It is there.
    Present(T),
    /// The cluster answered: it does not exist.
    Absent,
    /// The cluster did not answer; the string says why, for a person.
    Unknown(String),
}

impl<T> Seen<T> {
    /// The value, if it was seen.
    pub fn present(&self) -> Option<&T> {
        match self {
            Self::Present(value) => Some(value),
            Self::Absent | Self::Unknown(_) => None,
        }
    }

    /// Whether the cluster answered that it does not exist.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Why nothing is known, if nothing is known.
    pub fn unknown(&self) -> Option<&str> {
        match self {
            Self::Unknown(why) => Some(why),
            Self::Present(_) | Self::Absent => None,
        }
    }

    /// Looks at a part of what was seen.
    pub fn map<U>(&self, part: impl FnOnce(&T) -> U) -> Seen<U> {
        match self {
            Self::Present(value) => Seen::Present(part(value)),
            Self::Absent => Seen::Absent,
            Self::Unknown(why) => Seen::Unknown(why.clone()),
        }
    }
}
