//! One request as a state machine without I/O.
