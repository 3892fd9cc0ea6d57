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

#[test]
fn every_deliberate_fault_still_applies() {
    let patches = xtask::mutants::patches().unwrap();
    assert!(patches.len() >= 5);
    for patch in patches {
        let output = std::process::Command::new("git")
            .current_dir(xtask::crd_docs::root())
            .args(["apply", "--check"])
            .arg(&patch)
            .output()
            .unwrap();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {why}", patch.display());
    }
}
