//! See `docs/`.

fn main() {}
