//! farshore-lab
