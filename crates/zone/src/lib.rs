//! farshore-zone
