//! Generation and checks of the repository.

pub mod crd_docs;
pub mod fuzz;
pub mod layers;
pub mod mutants;
