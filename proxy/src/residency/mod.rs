//! Where a prompt's KV cache already is.
//!
//! A look-up in the Mooncake store (contract D.1, `PD_PROXY_RESIDENCY_*`) would tell which engine holds the KV of a
//! prompt. Nothing answers that yet, so the only answer is [`Residency::Unknown`] and every request is treated as a miss
//! (contract D.3, step 1).

/// What is known of a prompt's KV cache before the request is sent anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Residency {
    /// Nobody was asked, or nobody knows.
    Unknown,
}

/// Asks where the KV cache of a request's prompt is; the request is given as its JSON body.
pub fn locate(_body: &[u8]) -> Residency {
    Residency::Unknown
}
