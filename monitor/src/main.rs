//! The monitor's binary.

fn main() {}
