//! What goes through: bodies, headers, errors, and the connections to engines.
