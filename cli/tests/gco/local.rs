//! `gco local`.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use crate::house::{BINARY, House, run};

/// A copy of `gco` in a folder of its own, so that what stands beside it is known.
fn alone(house: &House) -> PathBuf {
    let binary = house.folder.path().join("gco");
    std::fs::hard_link(BINARY, &binary).or_else(|_| std::fs::copy(BINARY, &binary).map(|_| ())).unwrap();
    binary
}

#[test]
fn without_gco_local_beside_it_the_missing_file_is_named() {
    let house = House::new();
    let binary = alone(&house);
    let missing = format!("there is no {}", house.folder.path().join("gco-local").display());
    run(house.command_of(&binary, &["local", "up"])).code(1).complains(&["✗ gco-local is not installed", &missing]);
}

#[test]
fn everything_after_local_goes_to_gco_local_and_its_exit_code_comes_back() {
    let house = House::new();
    let binary = alone(&house);
    let script = house.folder.path().join("gco-local");
    std::fs::write(&script, "#!/bin/sh\nprintf '[%s]' \"$@\"\nexit 7\n").unwrap();
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ran = run(house.command_of(&binary, &["local", "up", "--help", "-o", "a b", "--", "--table"])).code(7);
    assert_eq!(ran.stdout, "[up][--help][-o][a b][--][--table]");
    assert_eq!(run(house.command_of(&binary, &["local"])).code(7).stdout, "[]");
}
