//! Tables to test on, and actors that use them.
