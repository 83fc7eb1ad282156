//! See `docs/`.
