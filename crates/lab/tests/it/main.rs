//! Integration tests of the lab, one binary.

mod drbd_kernel;
mod drbd_pair;
mod drbd_properties;
mod guest;
mod pair;
mod scenarios;
mod simulators;
