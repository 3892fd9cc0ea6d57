//! farshore-chart
