//! What the suites of this crate share.

use std::time::Duration;

/// Asks until the answer is `Ok`, at most for `bound`; panics with what was seen last.
pub(crate) async fn until<T>(what: &str, bound: Duration, mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = tokio::time::Instant::now() + bound;
    loop {
        let last = match ask().await {
            Ok(value) => return value,
            Err(last) => last,
        };
        assert!(tokio::time::Instant::now() < deadline, "not within {bound:?}: {what}; last seen: {last}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
