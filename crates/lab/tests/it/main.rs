//! Integration tests of the lab, one binary.

mod drbd_kernel;
mod drbd_properties;
mod guest;
mod pair;
