//! Generation and checks of the repository.

pub mod crd_docs;
pub mod layers;
pub mod mutants;
