//! The repository keeps its own rules.

#[test]
fn dependencies_between_the_crates_only_point_down() {
    let breaches = xtask::layers::breaches().unwrap();
    assert!(breaches.is_empty(), "{}", breaches.join("\n"));
}

#[test]
fn the_reference_of_kinds_is_in_step_with_the_types() {
    let written = std::fs::read_to_string(xtask::crd_docs::path()).unwrap();
    assert!(
        written == xtask::crd_docs::render().unwrap(),
        "run `cargo xtask docs`"
    );
}
