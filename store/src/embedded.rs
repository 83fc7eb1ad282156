//! A SQLite file with the same semantics.
