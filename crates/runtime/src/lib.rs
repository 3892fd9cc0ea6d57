//! farshore-runtime
