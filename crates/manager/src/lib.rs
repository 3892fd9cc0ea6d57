//! farshore-manager
