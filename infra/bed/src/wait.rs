//! Waiting for a state, with a bound, and saying what was seen last when it does not come.

use std::fmt;
use std::time::Duration;

/// How long to pause between two looks.
const PAUSE: Duration = Duration::from_millis(25);

/// The state did not come within the bound.
///
/// Its `Debug` is its `Display`, so that `unwrap` in a test prints something readable.
pub struct WaitError {
    /// What was waited for.
    pub description: String,
    /// How long.
    pub bound: Duration,
    /// What the last complete look saw.
    pub last_seen: String,
}

impl fmt::Display for WaitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { description, bound, last_seen } = self;
        write!(formatter, "waited {:.1} s for {description}; last seen: {last_seen}", bound.as_secs_f64())
    }
}

impl fmt::Debug for WaitError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl std::error::Error for WaitError {}

/// Looks again and again until `look` gives a value, at most for `bound`.
///
/// `look` returns the value once the state is there, else what it saw instead. A look that hangs
/// is cut off when the bound passes. Runs in tokio's time, so a paused clock works.
///
/// # Errors
/// With what was seen last, when the bound passes first.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use std::time::Duration;
/// let mut tries = 0;
/// let value = gco_bed::wait::until("three tries", Duration::from_secs(5), || {
///     tries += 1;
///     std::future::ready(if tries == 3 { Ok(tries) } else { Err(format!("{tries} tries")) })
/// });
/// assert_eq!(value.await.unwrap(), 3);
/// # }
/// ```
pub async fn until<T, Look, Looking>(description: &str, bound: Duration, mut look: Look) -> Result<T, WaitError>
where
    Look: FnMut() -> Looking,
    Looking: Future<Output = Result<T, String>>,
{
    let mut last_seen = String::from("nothing: the first look did not finish");
    let looking = async {
        loop {
            match look().await {
                Ok(value) => return value,
                Err(seen) => last_seen = seen,
            }
            tokio::time::sleep(PAUSE).await;
        }
    };
    let outcome = tokio::time::timeout(bound, looking).await;
    outcome.map_err(|_| WaitError { description: description.to_owned(), bound, last_seen })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_fails_says_what_it_saw_last() {
        let mut looks = 0;
        let look = || {
            looks += 1;
            let seen = format!("look {looks}");
            async move { Err::<(), _>(seen) }
        };
        let error = until("the moon", Duration::from_millis(60), look).await.unwrap_err();
        assert_eq!(error.to_string(), "waited 0.1 s for the moon; last seen: look 3");
        assert_eq!(format!("{error:?}"), error.to_string());
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_that_hangs_is_cut_off() {
        let look = || std::future::pending::<Result<(), String>>();
        let error = until("an answer", Duration::from_secs(1), look).await.unwrap_err();
        assert!(error.last_seen.starts_with("nothing"), "{error}");
    }
}
