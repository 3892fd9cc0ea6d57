//! farshore-workload
