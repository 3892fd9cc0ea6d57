//! Conditions: who says what about an object, and since when (Kubernetes API conventions).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};

/// Value of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Truth {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody can tell.
    Unknown,
}

impl Truth {
    /// The value as it stands in the API.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

impl From<bool> for Truth {
    fn from(holds: bool) -> Self {
        if holds { Self::True } else { Self::False }
    }
}

/// Sets a condition. `lastTransitionTime` stays unless the status changes; a new type is appended,
/// so the order is that of first insertion.
pub fn set(
    conditions: &mut Vec<Condition>,
    type_: &str,
    status: Truth,
    reason: impl Into<String>,
    message: impl Into<String>,
    observed_generation: Option<i64>,
    now: Timestamp,
) {
    let new = Condition {
        type_: type_.into(),
        status: status.as_str().into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation,
        last_transition_time: Time(whole_second(now)),
    };
    match conditions.iter_mut().find(|c| c.type_ == type_) {
        Some(old) if old.status == new.status => {
            let since = old.last_transition_time.clone();
            *old = Condition {
                last_transition_time: since,
                ..new
            };
        }
        Some(old) => *old = new,
        None => conditions.push(new),
    }
}

/// Says of all conditions that they hold for this generation: a decision looks at all of them, also at
/// those that it leaves as they are. `kubectl wait` takes one of an older generation for none.
pub fn observed(conditions: &mut [Condition], generation: Option<i64>) {
    for condition in conditions {
        condition.observed_generation = generation;
    }
}

/// The condition of this type.
pub fn get<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|c| c.type_ == type_)
}

/// Whether the condition of this type is there and True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    get(conditions, type_).is_some_and(|c| c.status == "True")
}

/// Removes the condition of this type.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) {
    conditions.retain(|c| c.type_ != type_);
}

/// The API keeps whole seconds; a fraction would make a fresh value differ from what is read back.
fn whole_second(now: Timestamp) -> Timestamp {
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_moves_only_with_the_status() {
        let mut all = Vec::new();
        set(
            &mut all,
            "Up",
            Truth::False,
            "Waiting",
            "a",
            Some(1),
            at(10),
        );
        set(
            &mut all,
            "Up",
            Truth::False,
            "StillWaiting",
            "b",
            Some(2),
            at(20),
        );
        let up = get(&all, "Up").unwrap();
        assert_eq!(
            (
                up.reason.as_str(),
                up.observed_generation,
                up.last_transition_time.0
            ),
            ("StillWaiting", Some(2), at(10))
        );
        set(&mut all, "Up", Truth::True, "Done", "", Some(2), at(30));
        assert_eq!(get(&all, "Up").unwrap().last_transition_time.0, at(30));
        assert!(is_true(&all, "Up"));
    }

    #[test]
    fn the_order_is_that_of_first_insertion() {
        let mut all = Vec::new();
        for type_ in ["B", "A", "B"] {
            set(&mut all, type_, Truth::Unknown, "r", "", None, at(0));
        }
        assert_eq!(
            all.iter().map(|c| c.type_.as_str()).collect::<Vec<_>>(),
            ["B", "A"]
        );
    }
}
