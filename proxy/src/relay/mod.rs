//! What goes through: bodies, headers, errors, and the connections to engines.
//!
//! | Part | What it holds |
//! |---|---|
//! | [`json`] | where the members of a JSON object are, without parsing their values |
//! | [`body`] | the bodies of both legs, made from the client's bytes |
//! | [`headers`] | which headers go to engines and back |
//! | [`errors`] | errors as OpenAI's clients read them |
//! | [`events`] | the first event of a stream, held back until it is whole |
//! | [`spliced`] | the body of a leg: stretches of the client's bytes and our own |
//! | [`upstream`] | connections to engines, kept per backend |
//! | [`joined`] | small slices are written as one |
//! | `nudge` | keeps a connection's halves from waking the task that drives them |

pub mod body;
pub mod errors;
pub mod events;
pub mod headers;
pub mod joined;
pub mod json;
mod nudge;
pub mod spliced;
pub mod upstream;

#[cfg(test)]
mod hostile;
