//! How large a suite runs: `GCO_SUITE_SIZE` is `small` (default; what continuous integration runs) or `full`.

/// Size of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Every path, few repetitions: seconds to two minutes.
    Small,
    /// The repetitions whose figures are quoted.
    Full,
}

impl Size {
    /// The size that this run was asked for.
    #[must_use]
    pub fn asked() -> Self {
        match gco_runtime::environment::Environment::process().get("GCO_SUITE_SIZE") {
            Some("full") => Self::Full,
            _ => Self::Small,
        }
    }

    /// `small` or `full`, whichever was asked for.
    #[must_use]
    pub fn choose<T>(self, small: T, full: T) -> T {
        match self {
            Self::Small => small,
            Self::Full => full,
        }
    }
}
