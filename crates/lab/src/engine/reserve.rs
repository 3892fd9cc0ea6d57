//! Real control planes that one lab has done with, kept for the next lab of this process. Starting one
//! takes two cores most of ten seconds; bringing its store back to what it was when it was new takes
//! a fraction of one.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::plane::Plane;

static RESERVE: Mutex<Vec<Plane>> = Mutex::new(Vec::new());

fn reserve() -> MutexGuard<'static, Vec<Plane>> {
    RESERVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a control plane.
pub fn put(plane: Plane) {
    reserve().push(plane);
}

/// A control plane as new, if one is kept.
pub fn take() -> Option<Plane> {
    loop {
        let plane = reserve().pop()?;
        match plane.renew() {
            Ok(()) => return Some(plane),
            // It is ended by its drop.
            Err(error) => eprintln!("a control plane is not used again: {error:#}"),
        }
    }
}
